"""Absolute position embedding at another resolution."""

import torch.nn.functional as F
from torch import Tensor


def resample_pos_embed(
    pos_embed: Tensor, source: tuple[int, int], target: tuple[int, int]
) -> Tensor:
    """Resample a learned position embedding from one patch grid to another.

    Bicubic, ``align_corners=False``, without antialiasing, computed in fp32, as in the reference.
    Equal grids return the embedding itself.

    Args:
        pos_embed: Embedding of the patches, row by row, (1, gh * gw, C). It has no row for CLS.
        source: Grid (gh, gw) of ``pos_embed``.
        target: Grid (h, w) wanted.

    Returns:
        Embedding for the target grid, (1, h * w, C), in the type of ``pos_embed``.

    Raises:
        ValueError: If the embedding does not have gh * gw rows.
    """
    if pos_embed.shape[1] != source[0] * source[1]:
        raise ValueError(
            f'pos_embed has {pos_embed.shape[1]} rows, but a grid of {source[0]} x {source[1]} '
            f'patches needs {source[0] * source[1]}'
        )
    if source == target:
        return pos_embed
    grid = pos_embed.float().transpose(1, 2).unflatten(2, source)  # (1, C, gh, gw)
    grid = F.interpolate(grid, size=target, mode='bicubic', align_corners=False)  # (1, C, h, w)
    return grid.flatten(2).transpose(1, 2).to(pos_embed.dtype)  # (1, h*w, C)
