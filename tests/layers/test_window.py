"""Windows of patches: the split, the way back and the padding."""

import pytest
import torch
from torch import Tensor

from vit5_dense.layers.window import merge_windows, split_windows, window_padding_mask

CASES = [
    ((4, 9), 4),
    ((9, 4), 4),
    ((5, 9), 4),
    ((14, 14), 7),
    ((14, 14), 4),
    ((20, 31), 7),
    ((20, 31), 4),
    ((1, 9), 4),
    ((7, 1), 7),
    ((1, 1), 7),
    ((3, 5), 8),
    ((6, 4), 1),
]


def index_patches(grid: tuple[int, int], batch: int = 2, heads: int = 3) -> Tensor:
    """(batch, heads, h * w, 2): the patch number from 1 on, and a number for batch and head."""
    number = torch.arange(1, grid[0] * grid[1] + 1.0).expand(batch, heads, -1)
    owner = torch.arange(1.0, batch * heads + 1).view(batch, heads, 1).expand_as(number)
    return torch.stack([number, owner], -1)


def expected_windows(grid: tuple[int, int], size: int) -> list[list[int]]:
    """Patch numbers of every window, row by row, 0 for padding, place by place."""
    h, w = grid
    return [
        [
            (i * w + j + 1 if i < h and j < w else 0)
            for i in range(top, top + size)
            for j in range(left, left + size)
        ]
        for top in range(0, h, size)
        for left in range(0, w, size)
    ]


@pytest.mark.parametrize(('grid', 'size'), CASES)
def test_every_place_of_every_window(grid: tuple[int, int], size: int) -> None:
    x = index_patches(grid)
    expected = expected_windows(grid, size)
    windows = split_windows(x, grid, size)
    assert windows.shape == (2 * len(expected), 3, size * size, 2)
    for b in range(2):
        for n, places in enumerate(expected):
            for head in range(3):
                number, owner = windows[b * len(expected) + n, head].unbind(-1)
                assert number.tolist() == places
                assert owner.tolist() == [b * 3 + head + 1 if p else 0 for p in places]


@pytest.mark.parametrize(('grid', 'size'), CASES)
def test_merge_is_the_inverse_of_split(grid: tuple[int, int], size: int) -> None:
    x = index_patches(grid)
    assert torch.equal(merge_windows(split_windows(x, grid, size), grid, size), x)


@pytest.mark.parametrize(('grid', 'size'), CASES)
def test_mask_tells_patches_from_padding(grid: tuple[int, int], size: int) -> None:
    expected = [[place > 0 for place in window] for window in expected_windows(grid, size)]
    mask = window_padding_mask(grid, size)
    if grid[0] % size == 0 and grid[1] % size == 0:
        assert mask is None
    else:
        assert mask.dtype == torch.bool
        assert mask.tolist() == expected


def test_gradients_pass_through_both_ways() -> None:
    x = torch.randn(1, 2, 15, 4, requires_grad=True)
    merge_windows(split_windows(x, (3, 5), 4), (3, 5), 4).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
