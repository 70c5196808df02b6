"""The least that a ViT-5 can cost: its matrix products and attention calls, nothing else."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..backbones import ViT5


class Floor(nn.Module):
    """Matrix products and ``scaled_dot_product_attention`` of a ViT-5, on the same sizes and types.

    Norms, biases, rotations, LayerScale, activations, residual sums and copies are left out, so
    that the values mean nothing. No implementation on these kernels can be faster.

    Args:
        model: Its sizes are taken; its weights and windows are not.
    """

    def __init__(self, model: ViT5) -> None:
        super().__init__()
        width = model.embed_dims
        self.num_heads = width // model.head_dim
        self.num_specials = 1 + model.num_registers
        self.patch_size = model.patch_size
        shapes = [(width, model.patch_embed.proj.weight[0].numel())]
        for _ in model.blocks:
            shapes += [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(s) * s[1] ** -0.5) for s in shapes)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) of pictures (B, 3, H, W) whose sides are whole patches."""
        patches = x.unflatten(2, (-1, self.patch_size)).flatten(3)  # (B, 3, h, p*W)
        patches = patches.reshape(len(x), -1, self.weights[0].shape[1])  # (B, h*w, 3*p*p)
        x = F.pad(F.linear(patches, self.weights[0]), (0, 0, 0, self.num_specials))  # (B, N, C)
        batch, tokens, width = x.shape
        for qkv, proj, up, down in zip(*[iter(self.weights[1:])] * 4, strict=True):
            # Taken as it lies in memory: which value is whose does not matter here.
            q, k, v = F.linear(x, qkv).view(3, batch, self.num_heads, tokens, -1)
            x = F.scaled_dot_product_attention(q, k, v)  # (B, heads, N, D)
            x = F.linear(x.reshape(batch, tokens, width), proj)
            x = F.linear(F.linear(x, up), down)
        return x
