"""Resampling of the absolute position embedding."""

import pytest
import torch
import torch.nn.functional as F

import oracle
from vit5_dense.layers.pos_embed import resample_pos_embed

TARGETS = [(8, 32), (32, 8), (7, 5), (1, 9), (3, 3), (1, 1), (5, 4)]


@pytest.mark.parametrize('target', TARGETS)
@pytest.mark.parametrize('source', [(4, 4), (14, 14), (3, 6)])
def test_bicubic_by_hand(source: tuple[int, int], target: tuple[int, int]) -> None:
    pos_embed = torch.randn(1, source[0] * source[1], 8)
    found = resample_pos_embed(pos_embed, source, target)
    assert found.shape == (1, target[0] * target[1], 8)
    expected = oracle.resample(pos_embed, source, target).float()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('target', TARGETS)
def test_is_interpolate_without_corners_and_antialias(target: tuple[int, int]) -> None:
    pos_embed = torch.randn(1, 36, 8)
    expected = F.interpolate(
        pos_embed.transpose(1, 2).reshape(1, 8, 6, 6),
        size=target,
        mode='bicubic',
        align_corners=False,
        antialias=False,
    )
    found = resample_pos_embed(pos_embed, (6, 6), target)
    torch.testing.assert_close(found, expected.flatten(2).transpose(1, 2), atol=1e-6, rtol=1e-6)


def test_the_own_grid_returns_the_embedding_bit_for_bit() -> None:
    pos_embed = torch.randn(1, 24, 8)
    assert torch.equal(resample_pos_embed(pos_embed, (4, 6), (4, 6)), pos_embed)


def test_a_grid_with_as_many_patches_is_not_the_own_grid() -> None:
    """6 x 4 has the 24 rows of 4 x 6, at other places."""
    pos_embed = torch.randn(1, 24, 8)
    found = resample_pos_embed(pos_embed, (4, 6), (6, 4))
    torch.testing.assert_close(
        found, oracle.resample(pos_embed, (4, 6), (6, 4)).float(), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_low_precision_is_computed_in_fp32_and_cast_back(dtype: torch.dtype) -> None:
    pos_embed = torch.randn(1, 16, 8).to(dtype)
    found = resample_pos_embed(pos_embed, (4, 4), (7, 5))
    assert found.dtype == dtype
    expected = resample_pos_embed(pos_embed.float(), (4, 4), (7, 5)).to(dtype)
    assert torch.equal(found, expected)


def test_gradients_reach_every_row() -> None:
    pos_embed = torch.randn(1, 16, 8, requires_grad=True)
    resample_pos_embed(pos_embed, (4, 4), (7, 9)).sum().backward()
    assert (pos_embed.grad != 0).all()


def test_a_row_for_cls_is_never_guessed() -> None:
    with pytest.raises(ValueError, match='197'):
        resample_pos_embed(torch.zeros(1, 197, 8), (14, 14), (20, 20))
