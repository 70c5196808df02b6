"""Rotary angles and the rotation of channel pairs."""

import pytest
import torch
from torch import Tensor

import oracle
from vit5_dense.layers import TokenLayout
from vit5_dense.layers.rope import axial_angles, rotate, token_rotation

GRIDS = [(8, 32), (32, 8), (7, 5), (1, 9), (4, 6)]


def turn_one_by_one(x: Tensor, angles: list[list[float]]) -> Tensor:
    """Rotate (..., N, D) token by token with a matrix each, in float64."""
    turned = [
        x[..., n, :].double() @ oracle.rotation_matrix(angle).T for n, angle in enumerate(angles)
    ]
    return torch.stack(turned, -2)


def test_frequencies_fall_from_one_by_powers_of_theta() -> None:
    """D = 8: half of it has the exponents 0 and 2 / 4, so 10000 gives 1 and 1 / 100."""
    angles = axial_angles((3, 2), 8)
    expected = [
        [0, 0, 0, 0],
        [0, 0, 1, 0.01],
        [1, 0.01, 0, 0],
        [1, 0.01, 1, 0.01],
        [2, 0.02, 0, 0],
        [2, 0.02, 1, 0.01],
    ]
    torch.testing.assert_close(angles, torch.tensor(expected))


def test_theta_100_gives_tenths() -> None:
    torch.testing.assert_close(
        axial_angles((2, 2), 8, theta=100.0)[3], torch.tensor([1.0, 0.1, 1.0, 0.1])
    )


def test_positions_are_scaled_to_the_reference_grid() -> None:
    """28 rows and 7 columns on a 14 x 14 reference: steps of 1/2 and of 2."""
    angles = axial_angles((28, 7), 4, reference=(14, 14)).view(28, 7, 2)
    torch.testing.assert_close(angles[:, 0, 0], torch.arange(28) / 2)
    torch.testing.assert_close(angles[0, :, 1], torch.arange(7) * 2.0)


def test_reference_equal_to_the_grid_gives_integers() -> None:
    torch.testing.assert_close(
        axial_angles((14, 14), 16, reference=(14, 14)), axial_angles((14, 14), 16)
    )


def test_rows_turn_the_first_half_and_columns_the_second() -> None:
    angles = axial_angles((4, 6), 16, reference=(14, 14)).view(4, 6, 8)
    for i in range(4):
        assert torch.equal(angles[i, :, :4], angles[i, :1, :4].expand(6, 4))
    for j in range(6):
        assert torch.equal(angles[:, j, 4:], angles[:1, j, 4:].expand(4, 4))
    assert len(angles[:, 0, 0].unique()) == 4
    assert len(angles[0, :, 4].unique()) == 6


@pytest.mark.parametrize('grid', GRIDS)
@pytest.mark.parametrize('reference', [None, (14, 14), (3, 5)])
def test_all_tokens_against_one_at_a_time(
    grid: tuple[int, int], reference: tuple[int, int] | None
) -> None:
    x = torch.randn(2, 3, 1 + grid[0] * grid[1] + 4, 16)
    rotation = token_rotation(TokenLayout(grid, 4), 16, reference)
    expected = turn_one_by_one(x, oracle.token_angles(16, grid, reference, 4))
    torch.testing.assert_close(rotate(x, rotation), expected.float(), atol=1e-5, rtol=1e-5)


def test_cls_does_not_turn_and_registers_turn_on_a_grid_of_their_own() -> None:
    """D = 8, theta = 100: registers at (0, 0), (0, 1), (1, 0), (1, 1) with 1 and 1 / 10."""
    rotation = token_rotation(TokenLayout((2, 3), 4), 8, (14, 14))
    assert rotation.shape == (11, 4, 2)
    cos, sin = rotation.unbind(-1)
    angles = torch.atan2(sin, cos)
    assert torch.equal(angles[0], torch.zeros(4))
    torch.testing.assert_close(
        angles[-4:], torch.tensor([[0, 0, 0, 0], [0, 0, 1, 0.1], [1, 0.1, 0, 0], [1, 0.1, 1, 0.1]])
    )


def test_no_registers() -> None:
    assert token_rotation(TokenLayout((2, 3), 0), 8).shape == (7, 4, 2)


def test_pairs_are_interleaved() -> None:
    """(x0, x1) and (x2, x3) are the pairs: with quarter and half turns the result is exact."""
    rotation = torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]])
    out = rotate(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), rotation)
    assert out.tolist() == [[-2.0, 1.0, -3.0, -4.0]]


def test_scores_depend_on_differences_of_position_only() -> None:
    """The same q and k on every patch: the score of two patches is a function of their offset."""
    grid = (5, 7)
    rotation = token_rotation(TokenLayout(grid, 0), 16, (14, 14))
    q, k = (rotate(torch.randn(16).expand(1, 36, 16), rotation)[0, 1:] for _ in range(2))
    scores = (q @ k.T).view(5, 7, 5, 7)
    for di, dj in [(0, 0), (1, 0), (0, 1), (2, 3), (-1, 2)]:
        same = torch.stack([scores[i, j, i + di, j + dj] for i in range(1, 3) for j in range(4)])
        torch.testing.assert_close(same, same[:1].expand(8), atol=1e-5, rtol=1e-5)
    assert (scores[2, 3, 2, 4] - scores[2, 3, 3, 3]).abs() > 1e-3


def test_rotation_keeps_lengths() -> None:
    x = torch.randn(2, 2, 40, 16)
    rotation = token_rotation(TokenLayout((5, 7), 4), 16)
    torch.testing.assert_close(rotate(x, rotation).norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize('reference', [None, (14, 14)])
def test_angles_are_fp32_whatever_the_default_and_autocast_are(
    reference: tuple[int, int] | None,
) -> None:
    """Positions such as 5 / 60 * 14 and frequencies both suffer in bf16."""
    layout = TokenLayout((64, 60), 4)
    expected = axial_angles(layout.grid, 64, reference)
    assert expected.dtype == torch.float32
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert torch.equal(axial_angles(layout.grid, 64, reference), expected)
        rotation = token_rotation(layout, 64, reference)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(axial_angles(layout.grid, 64, reference), expected)
        other = token_rotation(layout, 64, reference)
    finally:
        torch.set_default_dtype(torch.float32)
    assert rotation.dtype == other.dtype == torch.float32
    torch.testing.assert_close(rotation[1:-4, :, 0], expected.cos())
    assert torch.equal(other, rotation)


def test_angles_far_out_are_as_exact_as_fp32_can_be() -> None:
    angles = axial_angles((1, 256), 64)[255, 16:]
    expected = [255 * 10000 ** (-2 * i / 32) for i in range(16)]
    torch.testing.assert_close(angles, torch.tensor(expected), atol=0, rtol=1e-6)


@pytest.mark.parametrize('mode', ['trace', 'compile'])
def test_eager_and_traced_rotation_are_the_same(mode: str) -> None:
    """Eager turns complex numbers, which compilers and exporters do not take apart."""
    x = torch.randn(2, 2, 1 + 40 + 4, 16)
    rotation = token_rotation(TokenLayout((5, 8), 4), 16)
    if mode == 'trace':
        other = torch.jit.trace(rotate, (x, rotation), check_trace=False)
        assert 'complex' not in str(other.graph)
    else:
        other = torch.compile(rotate, backend='aot_eager', fullgraph=True)
    torch.testing.assert_close(other(x, rotation), rotate(x, rotation), atol=1e-6, rtol=1e-6)


def test_the_table_is_that_of_the_checkpoint_and_not_of_the_crop() -> None:
    """At 32 x 32 patches a 14 grid steps by 14 / 32 and a 24 grid by 24 / 32."""
    small = axial_angles((32, 32), 4, reference=(14, 14))[33]
    large = axial_angles((32, 32), 4, reference=(24, 24))[33]
    torch.testing.assert_close(small, torch.tensor([0.4375, 0.4375]))
    torch.testing.assert_close(large, torch.tensor([0.75, 0.75]))
