"""Windows over the patch grid: split, merge and the mask of what was padded."""

import torch
import torch.nn.functional as F
from torch import Tensor


def num_windows(grid: tuple[int, int], size: int) -> tuple[int, int]:
    """Windows of ``size`` x ``size`` patches that cover a grid (h, w), as (rows, columns)."""
    # Not -(-h // size): ONNX rounds quotients towards zero.
    return (grid[0] + size - 1) // size, (grid[1] + size - 1) // size


def split_windows(x: Tensor, grid: tuple[int, int], size: int) -> Tensor:
    """Cut the patch grid into windows and fold these into the batch.

    The grid is padded with zeros at the bottom and on the right to whole windows.

    Args:
        x: Patches of every head, row by row, (B, heads, h * w, D).
        grid: Rows and columns of patches (h, w).
        size: Side of a window in patches.

    Returns:
        Windows, row by row, (B * windows, heads, size * size, D).
    """
    rows, columns = num_windows(grid, size)
    x = x.unflatten(2, grid)  # (B, heads, h, w, D)
    right, bottom = columns * size - grid[1], rows * size - grid[0]
    if right or bottom:  # padding by nothing would copy
        x = F.pad(x, (0, 0, 0, right, 0, bottom))
    x = x.unflatten(3, (columns, size)).unflatten(2, (rows, size))  # (B, heads, r, s, c, s, D)
    return x.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(0, 2)  # (B*r*c, heads, s*s, D)


def merge_windows(x: Tensor, grid: tuple[int, int], size: int) -> Tensor:
    """Put windows together again and cut the padding off: the inverse of ``split_windows``.

    Args:
        x: Windows, (B * windows, heads, size * size, D).
        grid: Rows and columns of patches (h, w).
        size: Side of a window in patches.

    Returns:
        Patches row by row, (B, heads, h * w, D).
    """
    rows, columns = num_windows(grid, size)
    x = x.unflatten(2, (size, size)).unflatten(0, (-1, rows, columns))  # (B, r, c, heads, s, s, D)
    x = x.permute(0, 3, 1, 4, 2, 5, 6).flatten(4, 5).flatten(2, 3)  # (B, heads, r*s, c*s, D)
    return x[:, :, : grid[0], : grid[1]].flatten(2, 3)  # (B, heads, h*w, D)


def window_padding_mask(
    grid: tuple[int, int], size: int, device: torch.device | str | None = None
) -> Tensor | None:
    """Which places of each window hold a patch of the grid.

    Args:
        grid: Rows and columns of patches (h, w).
        size: Side of a window in patches.
        device: Where the mask is needed.

    Returns:
        True for a patch and False for padding, (windows, size * size); None if nothing is padded.
    """
    if grid[0] % size == 0 and grid[1] % size == 0:
        return None
    real = torch.ones(1, 1, grid[0] * grid[1], 1, device=device)
    return split_windows(real, grid, size)[:, 0, :, 0].bool()  # (windows, s*s)
