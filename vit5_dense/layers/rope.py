"""Rotary positions in two dimensions: angle tables and the rotation of queries and keys.

ViT-5 turns interleaved pairs of channels. The first half of a head's channels turns with the row of
the token, the second half with its column. Angles are always fp32: at 1000 px they reach values at
which a bf16 angle would be off by a tenth of a radian.
"""

import math

import torch
from torch import Tensor

from .modes import is_eager
from .tokens import TokenLayout

PATCH_THETA = 10000.0
REGISTER_THETA = 100.0


def axial_angles(
    grid: tuple[int, int],
    head_dim: int,
    reference: tuple[int, int] | None = None,
    theta: float = PATCH_THETA,
    device: torch.device | str | None = None,
) -> Tensor:
    """Angles of the tokens of a grid, row by row.

    Args:
        grid: Rows and columns (h, w).
        head_dim: Channels of one head D, a multiple of 4.
        reference: Grid (h, w) that the positions are scaled to: along an axis of n tokens they are
            ``i / n * reference``. None keeps the integers 0, 1, ..., n - 1.
        theta: Base of the geometric series of frequencies.
        device: Where to compute.

    Returns:
        Angles in radians, (h * w, D / 2), fp32: D / 4 of the row, then D / 4 of the column.
    """
    half = head_dim // 2
    exponents = torch.arange(0, half, 2, dtype=torch.float32, device=device) / half
    frequencies = 1.0 / theta**exponents  # (D/4,)
    axes = []
    for axis, size in enumerate(grid):
        positions = torch.arange(size, dtype=torch.float32, device=device)
        if reference is not None:
            positions = positions / size * reference[axis]
        axes.append(positions[:, None] * frequencies)  # (size, D/4)
    rows = axes[0][:, None].expand(-1, grid[1], -1)  # (h, w, D/4)
    columns = axes[1][None].expand(grid[0], -1, -1)  # (h, w, D/4)
    return torch.cat((rows, columns), dim=-1).flatten(0, 1)  # (h*w, D/2)


def token_rotation(
    layout: TokenLayout,
    head_dim: int,
    reference: tuple[int, int] | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """The rotation of all tokens of a picture.

    CLS does not turn. Registers stand on a square grid of their own, with a shorter wave length.

    Args:
        layout: Order of the N tokens; the number of registers is a square number.
        head_dim: Channels of one head D, a multiple of 4.
        reference: See ``axial_angles``; it concerns the patches only.
        device: Where to compute.

    Returns:
        Cosine and sine by which each token's channel pairs turn, (N, D / 2, 2), fp32.
    """
    side = math.isqrt(layout.num_registers)
    specials = torch.cat(
        (
            torch.zeros(1, head_dim // 2, device=device),
            axial_angles((side, side), head_dim, None, REGISTER_THETA, device),
        )
    )  # (1+R, D/2)
    patches = axial_angles(layout.grid, head_dim, reference, PATCH_THETA, device)  # (h*w, D/2)
    angles = layout.join(patches, specials, 0)  # (N, D/2)
    return torch.stack((angles.cos(), angles.sin()), dim=-1)  # (N, D/2, 2)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the channel pairs (0, 1), (2, 3), ... of every token.

    Without gradients the result takes the memory of ``x``.

    Args:
        x: Queries or keys, (..., D), fp32.
        rotation: Cosine and sine of each pair, fp32; broadcasts to (..., D / 2, 2).

    Returns:
        Turned queries or keys, (..., D), fp32.
    """
    pairs = x.unflatten(-1, (-1, 2))  # (..., D/2, 2)
    if is_eager():  # a pair is a complex number: one pass over memory
        pairs, rotation = torch.view_as_complex(pairs), torch.view_as_complex(rotation)
        turned = pairs * rotation if torch.is_grad_enabled() else pairs.mul_(rotation)
        return torch.view_as_real(turned).flatten(-2)
    (even, odd), (cos, sin) = pairs.unbind(-1), rotation.unbind(-1)  # (..., D/2) each
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
