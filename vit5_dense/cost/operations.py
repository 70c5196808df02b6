"""Multiplications of a model: counted by fvcore, and by a formula for the backbone."""

from collections import Counter
from typing import Any

from fvcore.nn import FlopCountAnalysis
from mmengine.model import BaseModel
from torch import Tensor, nn

from ..backbones import ViT5
from ..layers.attention import Attention
from ..layers.window import num_windows
from .parts import sample_of


def attention_macs(queries: int, keys: int, width: int) -> int:
    """Multiply-adds of softmax attention over all heads: scores, then the weighted sum."""
    return 2 * queries * keys * width


def backbone_macs(model: ViT5, height: int, width: int) -> dict[str, int]:
    """Multiply-adds of matrix products and attention by formula, for one picture.

    Norms, rotations, activations and sums are not counted, as is usual.

    Args:
        model: A backbone.
        height: Of the picture in pixels.
        width: Of the picture in pixels.

    Returns:
        Multiply-adds of ``patch_embed``, ``qkv``, ``attention``, ``proj`` and ``mlp``.
    """
    grid = -(-height // model.patch_size), -(-width // model.patch_size)
    patches, specials = grid[0] * grid[1], 1 + model.num_registers
    tokens, channels = patches + specials, model.embed_dims
    macs = Counter(patch_embed=patches * model.patch_embed.proj.weight.numel())
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    for layer in layers:
        size = layer.window_size
        macs['qkv'] += 3 * tokens * channels**2
        macs['proj'] += tokens * channels**2
        macs['mlp'] += 8 * tokens * channels**2
        if size is None:
            macs['attention'] += attention_macs(tokens, tokens, channels)
        else:
            rows, columns = num_windows(grid, size)
            seen = size**2 + specials
            macs['attention'] += rows * columns * attention_macs(size**2, seen, channels)
            macs['attention'] += attention_macs(specials, tokens, channels)
    return dict(macs)


def count_attention(inputs: list[Any], outputs: list[Any]) -> int:
    """fvcore's handle for ``scaled_dot_product_attention``, which it counts as nothing."""
    (*batch, queries, channels), keys = (
        inputs[0].type().sizes(),
        inputs[1].type().sizes()[-2],
    )
    macs = attention_macs(queries, keys, channels)
    for size in batch:
        macs *= size
    return macs


class Inference(nn.Module):
    """A whole model as a function of normalised pictures, as fvcore traces it."""

    def __init__(self, model: BaseModel, scope: str) -> None:
        super().__init__()
        self.model = model
        self.scope = scope

    def forward(self, x: Tensor) -> Any:
        """What heads give for pictures (B, 3, H, W), before results are made of it."""
        samples = [sample_of(self.scope, x.shape[2], x.shape[3]) for _ in x]
        return self.model(x, samples, mode='tensor')


def count(module: nn.Module, pictures: Tensor) -> FlopCountAnalysis:
    """fvcore's analysis of a module, with attention counted.

    Args:
        module: Takes pictures.
        pictures: Normalised, (B, 3, H, W).

    Returns:
        ``total()`` and ``by_module()`` give multiply-adds (fvcore calls them flops),
        ``unsupported_ops()`` what was not counted.
    """
    analysis = FlopCountAnalysis(module, pictures)
    analysis.set_op_handle('aten::scaled_dot_product_attention', count_attention)
    return analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
