"""ViT-5 that learns through low-rank adapters while its weights rest."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.registry import MODELS
from torch import Tensor

from ..errors import UserError
from .vit5 import ViT5

SCALE = 'lora_scale'
BASE = '.base_layer.'  # what peft puts into the name of an adapted layer's own parameters


def merge_lora(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of the plain model that gives the same features.

    Args:
        state: Of a ``ViT5LoRA``, or of a whole model with one in it; without adapters it is
            returned as it is.

    Returns:
        Names and shapes as with ``ViT5``: ``W + scale * B @ A`` for every adapted weight.
    """
    scales = [value for name, value in state.items() if name.endswith(SCALE)]
    merged = {}
    for name, value in state.items():
        layer = name.removesuffix(f'{BASE}weight')
        if layer != name and scales:
            up, down = (state[f'{layer}.lora_{half}.default.weight'] for half in 'BA')
            value = (value.double() + scales[0] * (up.double() @ down.double())).to(value.dtype)
        if '.lora_' not in name and not name.endswith(SCALE):
            merged[name.replace(BASE, '.')] = value
    return merged


@MODELS.register_module()
class ViT5LoRA(ViT5):
    """``ViT5`` whose linear layers learn by LoRA (peft); all else of the backbone is frozen.

    One line in a config, or ``--cfg-options model.backbone.type=ViT5LoRA``, turns it on; neck and
    heads train as ever. ``init_cfg`` loads a plain ViT-5 file. A checkpoint of the run has peft's
    names (``blocks.0.attn.qkv.base_layer.weight``, ``....lora_A.default.weight``) and fits this
    class; ``tools/publish_checkpoint.py`` writes the weights merged, for ``ViT5``.

    Args:
        r: Rank of the adapters.
        alpha: They are scaled by alpha / r.
        dropout: Of the adapters' input, in training.
        target_modules: Names of the linear layers of a block.
        options: Those of ``ViT5``. With ``frozen_stages=k`` the first k blocks have no adapters.

    Raises:
        UserError: If peft is not installed.
    """

    lora_scale: Tensor

    def __init__(
        self,
        r: int = 8,
        alpha: int = 16,
        dropout: float = 0.0,
        target_modules: Sequence[str] = ('qkv', 'proj', 'fc1', 'fc2'),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError as error:
            raise UserError(
                f'ViT5LoRA needs peft, which cannot be imported ({error}): '
                'pip install -c constraints.txt -e .[lora]'
            ) from error
        self._options = options
        config = LoraConfig(
            r=r, lora_alpha=alpha, lora_dropout=dropout, target_modules=list(target_modules)
        )
        inject_adapter_in_model(config, self.blocks[max(self.frozen_stages, 0) :])
        for name, param in self.named_parameters():
            param.requires_grad_('.lora_' in name)
        # Part of the state, so that a checkpoint can be merged without its config.
        self.register_buffer(SCALE, torch.tensor(alpha / r))

    def init_weights(self) -> None:
        """Load the file that ``init_cfg`` names into the frozen layers."""
        if not self._is_init and self.init_cfg:
            plain = ViT5(**self._options)
            plain.init_weights()
            weights = plain.state_dict()
            own = self.state_dict()
            fitting = {name: weights.get(name.replace(BASE, '.'), own[name]) for name in own}
            self.load_state_dict(fitting, strict=True)
        self._is_init = True

    def merge(self) -> dict[str, Tensor]:
        """The state dict of a plain ``ViT5`` that gives the same features."""
        return merge_lora(self.state_dict())
