"""ViT-5 as a backbone for dense prediction."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from timm.layers import PatchEmbed, trunc_normal_
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..checkpoint import load_pretrained
from ..layers import Block, RMSNorm, TokenLayout, resample_pos_embed, token_rotation
from .sizes import LONG_NAMES, layer_depth, quarters, resolve_arch, resolve_indices


@MODELS.register_module()
class ViT5(BaseModule):
    """Plain vision transformer with RMSNorm, QK-norm, LayerScale, RoPE and register tokens.

    Takes pictures of any size: they are padded with zeros at the bottom and on the right to whole
    patches, the absolute position embedding is resampled to the grid of patches and rotary
    positions are computed for it. As a bf16 or fp16 module, or under autocast, features stay within
    3 % of fp32 (norm of the difference over the norm). Parameter names are those of the reference
    implementation (https://github.com/wangf3014/ViT-5, arXiv 2602.08071).

    Args:
        arch: 'ti', 's', 'b', 'l', 'xl' or a dict of embed_dims, depth and num_heads.
        pretrain_img_size: Side in pixels of the pictures that the weights were trained on. It fixes
            the grid of ``pos_embed`` and the grid to which RoPE interpolates.
        patch_size: Side of a patch in pixels.
        in_channels: Channels of the picture.
        num_registers: Register tokens R, a square number.
        out_indices: Blocks whose output is returned, ascending; negative ones count from the last.
            By default the last of each quarter: (2, 5, 8, 11) of 12. Blocks beyond the last of
            them are not built.
        drop_path_rate: Stochastic depth, the same for all blocks as in the reference.
        layer_scale_init: Initial LayerScale. The reference has 1e-4, which suits a long
            pre-training; short training from scratch wants about 1.
        rope_scaling: 'interpolate' scales positions to the pre-training grid (the official rule);
            'extrapolate' counts patches.
        window_size: Side in patches of attention windows. Patches see their own window and all
            special tokens (CLS, registers), which see everything. None means global attention.
        global_attn_indexes: Blocks that keep global attention where ``window_size`` is set;
            negative ones count from the last block of ``arch``.
        out_norm: Apply the final RMSNorm to every output; without it that parameter is not built.
        frozen_stages: -1 trains all; 0 freezes patch embedding, tokens and position embedding; k
            freezes the first k blocks as well.
        with_cp: Recompute in the backward pass to save memory: True the blocks, 'gelu' only the
            activation of the MLPs, which costs next to no time.
        compiled: Run through ``torch.compile``, from the first call on. Names of parameters stay.
        init_cfg: ``dict(type='Pretrained', checkpoint=PATH_OR_URL)`` loads a ViT-5 file, strictly.

    Attributes:
        sizes: Everything that fixes the shapes of the parameters, as numbers by name.

    Raises:
        ValueError: If a value is out of range; the message holds it.
    """

    _is_init: bool

    def __init__(
        self,
        arch: str | dict[str, int] = 'b',
        pretrain_img_size: int = 224,
        patch_size: int = 16,
        in_channels: int = 3,
        num_registers: int = 4,
        out_indices: Sequence[int] | None = None,
        drop_path_rate: float = 0.0,
        layer_scale_init: float = 1e-4,
        rope_scaling: Literal['interpolate', 'extrapolate'] = 'interpolate',
        window_size: int | None = None,
        global_attn_indexes: Sequence[int] = (),
        out_norm: bool = False,
        frozen_stages: int = -1,
        with_cp: bool | Literal['gelu'] = False,
        compiled: bool = False,
        init_cfg: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(init_cfg)
        sizes = resolve_arch(arch)
        self.sizes = {
            **sizes,
            'patch_size': patch_size,
            'pretrain_img_size': pretrain_img_size,
            'num_registers': num_registers,
        }
        if out_indices is None:
            out_indices = quarters(sizes['depth'])
        self.out_indices = resolve_indices('out_indices', out_indices, sizes['depth'])
        depth = self.out_indices[-1] + 1 if self.out_indices else 0
        global_blocks = resolve_indices('global_attn_indexes', global_attn_indexes, sizes['depth'])
        if not depth:
            raise ValueError('out_indices is empty: name at least one block')
        if patch_size < 1 or pretrain_img_size < 1 or pretrain_img_size % patch_size:
            raise ValueError(
                f'pretrain_img_size {pretrain_img_size} is no multiple of patch_size {patch_size}'
            )
        if num_registers < 0 or math.isqrt(num_registers) ** 2 != num_registers:
            raise ValueError(f'num_registers {num_registers} is no square number: they form a grid')
        if not 0 <= drop_path_rate < 1:
            raise ValueError(f'drop_path_rate {drop_path_rate} must be at least 0 and below 1')
        if rope_scaling not in ('interpolate', 'extrapolate'):
            raise ValueError(
                f"rope_scaling {rope_scaling!r} must be 'interpolate' or 'extrapolate'"
            )
        if window_size is not None and window_size < 1:
            raise ValueError(f'window_size {window_size} must be at least 1 patch, or None')
        if global_blocks and window_size is None:
            raise ValueError(
                f'global_attn_indexes {global_blocks} have no effect without window_size'
            )
        if with_cp not in (False, True, 'gelu'):
            raise ValueError(f"with_cp {with_cp!r} must be False, True or 'gelu'")
        if not -1 <= frozen_stages <= depth:
            raise ValueError(
                f'frozen_stages {frozen_stages} must be -1 to {depth}, the blocks built'
            )

        self.arch_name = f'vit5_{LONG_NAMES[arch] if isinstance(arch, str) else "custom"}'
        self.embed_dims = sizes['embed_dims']
        self.head_dim = self.embed_dims // sizes['num_heads']
        self.patch_size = patch_size
        self.num_registers = num_registers
        self.pretrain_grid = (pretrain_img_size // patch_size, pretrain_img_size // patch_size)
        self.rope_reference = self.pretrain_grid if rope_scaling == 'interpolate' else None
        self.frozen_stages = frozen_stages
        self.with_cp = with_cp

        num_patches = self.pretrain_grid[0] * self.pretrain_grid[1]
        self.patch_embed = PatchEmbed(
            None, patch_size, in_channels, self.embed_dims, flatten=False, dynamic_img_pad=True
        )
        self.pos_embed = nn.Parameter(torch.zeros(1, num_patches, self.embed_dims))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, self.embed_dims))
        self.reg_token = nn.Parameter(torch.zeros(1, num_registers, self.embed_dims))
        self.blocks = nn.ModuleList(
            Block(
                self.embed_dims,
                sizes['num_heads'],
                None if i in global_blocks else window_size,
                drop_path_rate,
                layer_scale_init,
                with_cp == 'gelu',
            )
            for i in range(depth)
        )
        self.norm = RMSNorm(self.embed_dims) if out_norm else nn.Identity()
        self._init_from_scratch()
        for module in self._frozen_modules():
            module.requires_grad_(False)
        if frozen_stages >= 0:
            for token in (self.pos_embed, self.cls_token, self.reg_token):
                token.requires_grad_(False)
        if compiled:
            self.compile(fullgraph=True)

    def _init_from_scratch(self) -> None:
        for token in (self.pos_embed, self.cls_token, self.reg_token):
            trunc_normal_(token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def init_weights(self) -> None:
        """Load the file that ``init_cfg`` names; the constructor has initialised all else."""
        if self._is_init:
            return
        if self.init_cfg:
            if (
                set(self.init_cfg) != {'type', 'checkpoint'}
                or self.init_cfg['type'] != 'Pretrained'
            ):
                raise ValueError(
                    "init_cfg must be None or dict(type='Pretrained', checkpoint=PATH_OR_URL), "
                    f'but is {self.init_cfg}'
                )
            print_log(load_pretrained(self, self.init_cfg['checkpoint']), logger='current')
        self._is_init = True

    def _frozen_modules(self) -> list[nn.Module]:
        if self.frozen_stages < 0:
            return []
        return [self.patch_embed, *self.blocks[: self.frozen_stages]]

    def train(self, mode: bool = True) -> 'ViT5':
        """Switch between training and evaluation; frozen parts stay in evaluation."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval()
        return self

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Depth of a parameter, for layer-wise decay of the learning rate.

        Args:
            param_name: Full name of the parameter.
            prefix: Name of this backbone in the model with a trailing dot, such as 'backbone.'.

        Returns:
            The depth and the number of depths (blocks + 2): 0 for patch embedding, tokens and
            position embedding, i + 1 for block i, the last for all that comes after the blocks.

        Raises:
            ValueError: If the backbone has no such parameter.
        """
        return layer_depth(param_name, len(self.blocks), prefix)

    def forward_blocks(
        self, x: Tensor, indices: Sequence[int]
    ) -> tuple[list[Tensor], tuple[int, int]]:
        """All tokens after some of the blocks, without the final norm.

        Args:
            x: Normalised pictures, (B, in_channels, H, W), any H and W >= 1.
            indices: Numbers of blocks from 0; those after the last of them are not run.

        Returns:
            For each index the tokens CLS, patches row by row, registers, of shape
            (B, 1 + h * w + R, C); and the grid (h, w) with h = ceil(H / patch_size) and
            w = ceil(W / patch_size).
        """
        x = self.patch_embed(x)  # (B, C, h, w)
        layout = TokenLayout((x.shape[2], x.shape[3]), self.num_registers)
        pos_embed = resample_pos_embed(self.pos_embed, self.pretrain_grid, layout.grid)
        patches = x.flatten(2).transpose(1, 2) + pos_embed  # (B, h*w, C)
        specials = torch.cat((self.cls_token, self.reg_token), dim=1).expand(x.shape[0], -1, -1)
        x = layout.join(patches, specials.to(patches.dtype))  # (B, N, C)
        rotation = token_rotation(layout, self.head_dim, self.rope_reference, x.device)
        taps = []
        for i, block in enumerate(self.blocks[: max(indices) + 1]):
            if self.with_cp is True and torch.is_grad_enabled():
                x = checkpoint(block, x, rotation, layout, use_reentrant=False)
            else:
                x = block(x, rotation, layout)
            if i in indices:
                taps.append(x)
        return taps, layout.grid

    def forward_tokens(self, x: Tensor) -> tuple[list[Tensor], tuple[int, int]]:
        """All tokens of the tapped blocks, normalised if ``out_norm``.

        Args:
            x: Normalised pictures, (B, in_channels, H, W), any H and W >= 1.

        Returns:
            For each of ``out_indices`` the tokens (B, 1 + h * w + R, C), and the grid (h, w); see
            ``forward_blocks``.
        """
        taps, grid = self.forward_blocks(x, self.out_indices)
        return [self.norm(tap) for tap in taps], grid

    def to_map(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """The patches among all tokens (B, N, C) as a map (B, C, h, w)."""
        patches = TokenLayout(grid, self.num_registers).patches(tokens)  # (B, h*w, C)
        return patches.transpose(1, 2).unflatten(2, grid).contiguous()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Feature maps of the tapped blocks, at the stride of ``patch_size``.

        Args:
            x: Normalised pictures, (B, in_channels, H, W), any H and W >= 1.

        Returns:
            For each of ``out_indices`` a map (B, C, ceil(H / patch_size), ceil(W / patch_size)).
        """
        taps, grid = self.forward_tokens(x)
        return tuple(self.to_map(tap, grid) for tap in taps)
