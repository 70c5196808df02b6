"""What a ViT-5 sees in one picture: attention of its tokens and principal components, per block."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .backbones import ViT5
from .errors import UserError
from .layers import TokenLayout
from .layers.attention import attention_weights, visible_tokens

SPREAD = (0.01, 0.99)  # quantiles of a component that become 0 and 255


def check_backbone(backbone: nn.Module | None) -> ViT5:
    """Return a backbone that can be looked into.

    Raises:
        UserError: If it is none of ViT-5.
    """
    if not isinstance(backbone, ViT5):
        raise UserError(f'the backbone is {type(backbone).__name__}: only ViT5 can be looked into')
    return backbone


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A module in evaluation, without gradients; afterwards it is as it was."""
    was_training = module.training
    module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        module.train(was_training)


class Seen:
    """The inside of a backbone at one picture; ``look_inside`` makes it.

    It holds the tokens before and after every block. Queries and keys are computed again where they
    are asked for, by the block itself: leave the backbone as it is meanwhile. Maps cover the padded
    input, a value for each patch. Attention is the mean over the heads; what a map lacks to a sum
    of 1 goes to CLS and registers.

    Args:
        backbone: That has seen the picture.
        tokens: Before the first block and after every block, (1, N, C) each.
        rotation: Cosine and sine of all tokens, (N, D / 2, 2).
        layout: Order of the N tokens.
        filled: Which patches hold more than padding, (h, w).

    Attributes:
        grid: Rows and columns of patches (h, w).
        depth: Number of blocks.
        num_registers: Number of register tokens.
        patch_size: Side of a patch in pixels.
    """

    def __init__(
        self,
        backbone: ViT5,
        tokens: Sequence[Tensor],
        rotation: Tensor,
        layout: TokenLayout,
        filled: Tensor,
    ) -> None:
        self.grid = layout.grid
        self.depth = len(backbone.blocks)
        self.num_registers = layout.num_registers
        self.patch_size: int = backbone.patch_size
        self._blocks: Any = backbone.blocks
        self._tokens, self._rotation, self._layout = tokens, rotation, layout
        self._filled = filled.flatten().cpu()  # (h*w,)
        self._recent: tuple[int, Tensor, Tensor] | None = None
        numbers = torch.arange(sum(layout.parts))
        self._patches = layout.patches(numbers, 0).view(layout.grid)  # (h, w) in the sequence
        self._specials = layout.specials(numbers, 0)  # (1+R,)

    def _check_block(self, block: int) -> None:
        if not 0 <= block < self.depth:
            raise UserError(f'block {block} does not exist: blocks are 0 to {self.depth - 1}')

    def _queries_keys(self, block: int) -> tuple[Tensor, Tensor]:
        """Queries and keys of a block, (1, heads, N, D); those of the last one asked for stay."""
        self._check_block(block)
        recent = self._recent
        if recent is None or recent[0] != block:
            module = self._blocks[block]
            with evaluating(module):
                normed = module.norm1(self._tokens[block])
                q, k, _ = module.attn.queries_keys_values(normed, self._rotation)
            self._recent = recent = (block, q, k)
        return recent[1:]

    @torch.inference_mode()
    def _attention_of(self, block: int, token: int) -> np.ndarray:
        q, k = self._queries_keys(block)
        size = self._blocks[block].attn.window_size
        visible = visible_tokens(self._layout, size, token, q.device)
        weights = attention_weights(q, k, visible, token).mean(1)  # (1, N)
        return self._layout.patches(weights).view(self.grid).cpu().numpy()

    def attention(self, block: int, row: int, column: int) -> np.ndarray:
        """How much one patch attends to every patch.

        Args:
            block: From 0.
            row: Of the patch, from 0.
            column: Of the patch, from 0.

        Returns:
            Weights, (h, w), float32; 0 outside the window where the block has windows.

        Raises:
            UserError: If there is no such block or patch.
        """
        if not (0 <= row < self.grid[0] and 0 <= column < self.grid[1]):
            raise UserError(
                f'patch ({row}, {column}) does not exist: there are {self.grid[0]} rows and '
                f'{self.grid[1]} columns'
            )
        return self._attention_of(block, int(self._patches[row, column]))

    def cls_attention(self, block: int) -> np.ndarray:
        """How much CLS attends to every patch; see ``attention``."""
        return self._attention_of(block, int(self._specials[0]))

    def register_attention(self, block: int, index: int) -> np.ndarray:
        """How much a register, numbered from 0, attends to every patch; see ``attention``."""
        if not 0 <= index < self.num_registers:
            raise UserError(f'register {index} does not exist: there are {self.num_registers}')
        return self._attention_of(block, int(self._specials[1 + index]))

    @torch.inference_mode()
    def pca(self, block: int) -> np.ndarray:
        """The first three principal components of the patches after a block, as colours.

        Components are those of the patches that hold more than padding. Of each component the 1st
        and the 99th percentile become 0 and 255. Its largest coefficient is positive, so that the
        colours are the same at every call.

        Returns:
            Red, green and blue for each patch, (h, w, 3), uint8.
        """
        self._check_block(block)
        patches = self._layout.patches(self._tokens[block + 1])[0].double().cpu()  # (h*w, C)
        centred = patches - patches[self._filled].mean(0)
        own = centred[self._filled]
        _, axes = torch.linalg.eigh(own.T @ own)  # ascending
        axes = axes[:, -3:].flip(1)  # (C, 3)
        axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
        limits = (own @ axes).quantile(torch.tensor(SPREAD, dtype=axes.dtype), dim=0)  # (2, 3)
        low, span = limits[0], limits[1] - limits[0]
        span = span.clamp(min=max(1e-6 * float(span.max()), 1e-12))  # no noise of what is constant
        levels = ((centred @ axes - low) / span).clamp(0, 1)  # (h*w, 3)
        return (255 * levels).round().byte().view(*self.grid, 3).numpy()


def look_inside(backbone: nn.Module, pictures: Tensor) -> Seen:
    """Run a backbone once on one picture and keep what it has seen.

    Of a compiled backbone the same code is run uncompiled. The mode, training or evaluation, is
    left as it was.

    Args:
        backbone: A ``ViT5``, such as ``predictor.model.backbone``.
        pictures: One normalised picture as the backbone gets it, (1, 3, H, W). Patches that are
            zero throughout, as padding is, have no say in the components of ``Seen.pca``.

    Raises:
        UserError: If it is another backbone.
        ValueError: If there is not exactly one picture.
    """
    backbone = check_backbone(backbone)
    if len(pictures) != 1:
        raise ValueError(f'one picture can be looked at, not {len(pictures)}')
    kept: list[tuple[Tensor, Tensor, TokenLayout]] = []  # what every block is called with
    thread = threading.get_ident()

    def keep(block: nn.Module, args: tuple[Tensor, Tensor, TokenLayout]) -> None:
        if threading.get_ident() == thread:  # another one may run the same model meanwhile
            kept.append(args)

    hooks = [block.register_forward_pre_hook(keep) for block in backbone.blocks]
    try:
        with evaluating(backbone):
            (last,), grid = backbone.forward_blocks(pictures, [len(backbone.blocks) - 1])
            solid = pictures.abs().amax(1, keepdim=True)  # (1, 1, H, W)
            filled = F.max_pool2d(solid.float(), backbone.patch_size, ceil_mode=True)[0, 0] > 0
    finally:
        for hook in hooks:
            hook.remove()
    if not filled.any():
        filled = torch.ones(grid, dtype=torch.bool)
    _, rotation, layout = kept[0]
    return Seen(backbone, [*(x for x, _, _ in kept), last], rotation, layout, filled)
