"""The pyramid: sizes, strides, what each level is made from."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from vit5_dense import SimplePyramid, ViT5

STRIDES = (4, 8, 16, 32, 64)
SIZES = {
    (7, 5): [(28, 20), (14, 10), (7, 5), (4, 3), (2, 2)],
    (8, 12): [(32, 48), (16, 24), (8, 12), (4, 6), (2, 3)],
    (1, 1): [(4, 4), (2, 2), (1, 1), (1, 1), (1, 1)],
    (1, 9): [(4, 36), (2, 18), (1, 9), (1, 5), (1, 3)],
}
Fill = Callable[[nn.Module], nn.Module]


def sizes(levels: tuple[Tensor, ...]) -> list[tuple[int, int]]:
    return [tuple(level.shape[-2:]) for level in levels]


@pytest.mark.parametrize('out_channels', [None, 24])
@pytest.mark.parametrize('many', [True, False])
@pytest.mark.parametrize('grid', SIZES)
def test_sizes_and_channels(grid: tuple[int, int], many: bool, out_channels: int | None) -> None:
    neck = SimplePyramid(16, out_channels=out_channels, strides=STRIDES)
    levels = neck(tuple(torch.randn(2, 16, *grid) for _ in range(5 if many else 1)))
    assert isinstance(levels, tuple)
    assert sizes(levels) == SIZES[grid]
    assert {tuple(level.shape[:2]) for level in levels} == {(2, out_channels or 16)}
    assert all(level.is_contiguous() for level in levels), 'RoIAlign reads memory as it lies'


def test_four_levels_by_default_and_the_strides_are_told() -> None:
    neck = SimplePyramid(16)
    assert tuple(neck.strides) == (4, 8, 16, 32)
    assert sizes(neck((torch.randn(1, 16, 7, 5),))) == SIZES[7, 5][:4]
    assert tuple(SimplePyramid(16, strides=STRIDES).strides) == STRIDES


@pytest.mark.parametrize('strides', [(8, 16), (16,), (4, 32), (16, 32, 64)])
def test_any_selection_of_strides(strides: tuple[int, ...]) -> None:
    levels = SimplePyramid(16, strides=strides)((torch.randn(1, 16, 7, 5),))
    assert sizes(levels) == [SIZES[7, 5][STRIDES.index(stride)] for stride in strides]


def test_strides_follow_the_stride_of_the_input() -> None:
    """Patches of 8 pixels: the same four maps have half the strides."""
    neck = SimplePyramid(16, strides=(2, 4, 8, 16), in_stride=8)
    assert tuple(neck.strides) == (2, 4, 8, 16)
    assert sizes(neck((torch.randn(1, 16, 7, 5),))) == SIZES[7, 5][:4]


def test_registered_and_fed_by_the_backbone() -> None:
    backbone = ViT5(arch={'embed_dims': 32, 'depth': 4, 'num_heads': 2}, out_indices=(0, 1, 2, 3))
    neck = MODELS.build({'type': 'SimplePyramid', 'in_channels': 32, 'out_channels': 8})
    levels = neck(backbone(torch.randn(1, 3, 64, 97)))
    assert sizes(levels) == [(16, 28), (8, 14), (4, 7), (2, 4)]


def test_the_own_stride_passes_as_it_is() -> None:
    x = torch.randn(1, 16, 7, 5)
    assert torch.equal(SimplePyramid(16)((x,))[2], x)


@pytest.mark.parametrize('level', range(5))
def test_a_level_is_made_from_its_own_map(randomised: Fill, level: int) -> None:
    neck = randomised(SimplePyramid(16, strides=STRIDES))
    maps = [torch.randn(1, 16, 4, 6, requires_grad=True) for _ in range(5)]
    grads = torch.autograd.grad(neck(maps)[level].sum(), maps, allow_unused=True)
    assert [grad is not None and bool(grad.abs().sum() > 0) for grad in grads] == [
        index == level for index in range(5)
    ]


@pytest.mark.parametrize(('level', 'factor'), [(0, 4), (1, 2)])
def test_a_patch_fills_its_own_square_of_a_finer_level(
    randomised: Fill, level: int, factor: int
) -> None:
    """Transposed convolutions do not overlap, and rows stay rows."""
    neck, x = randomised(SimplePyramid(16)), torch.randn(1, 16, 3, 5)
    before = neck((x,))[level]
    for i, j in [(0, 0), (1, 3), (2, 4)]:
        other = x.clone()
        other[0, :, i, j] += torch.randn(16)
        changed = (neck((other,))[level] != before).any(1)[0]
        expected = torch.zeros_like(changed)
        expected[factor * i : factor * (i + 1), factor * j : factor * (j + 1)] = True
        assert torch.equal(changed, expected)


def test_up_sampling_is_learned_by_transposed_convolutions() -> None:
    def up(strides: tuple[int, ...]) -> int:
        neck = SimplePyramid(16, strides=strides)
        return sum(isinstance(module, nn.ConvTranspose2d) for module in neck.modules())

    assert up((4,)) > 0
    assert up((8,)) > 0
    assert up((16, 32, 64)) == 0


def test_with_out_channels_each_level_ends_in_a_1x1_and_a_3x3_with_norms() -> None:
    neck = SimplePyramid(16, out_channels=24, strides=(16, 32))
    kernels = [module.kernel_size for module in neck.modules() if isinstance(module, nn.Conv2d)]
    norms = [tuple(param.shape) for name, param in neck.named_parameters() if param.ndim == 1]
    assert kernels == [(1, 1), (3, 3)] * 2
    assert norms == [(24,)] * (2 * 2 * 2)
    for level in neck((torch.randn(2, 16, 7, 5),)):
        torch.testing.assert_close(level.mean(1), torch.zeros_like(level[:, 0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize('options', [{}, {'out_channels': 8}, {'strides': STRIDES}], ids=str)
@pytest.mark.parametrize('many', [True, False])
def test_every_parameter_gets_a_gradient(
    randomised: Fill, many: bool, options: dict[str, Any]
) -> None:
    neck = randomised(SimplePyramid(16, **options))
    levels = neck([torch.randn(2, 16, 4, 6) for _ in range(len(neck.strides) if many else 1)])
    sum((level * torch.randn_like(level)).sum() for level in levels).backward()
    for name, param in neck.named_parameters():
        assert param.grad is not None, name
        assert param.grad.abs().sum() > 0, name


def test_bf16() -> None:
    neck = SimplePyramid(16, out_channels=8).bfloat16()
    levels = neck((torch.randn(1, 16, 7, 5).bfloat16(),))
    assert all(level.dtype == torch.bfloat16 and level.isfinite().all() for level in levels)


@pytest.mark.parametrize('count', [0, 2, 3, 5])
def test_neither_one_map_nor_one_per_level(count: int) -> None:
    with pytest.raises(ValueError, match=str(count)) as error:
        SimplePyramid(16)([torch.randn(1, 16, 4, 6)] * count)
    assert '4' in str(error.value)


@pytest.mark.parametrize(
    ('options', 'named'),
    [
        ({'strides': (4, 12)}, '12'),
        ({'strides': (3, 16)}, '3'),
        ({'strides': (16, 8)}, '8'),
        ({'strides': (16, 16)}, '16'),
        ({'strides': (4, 8), 'in_stride': 14}, '14'),
        ({'strides': ()}, 'strides'),
        ({'strides': (0, 16)}, '0'),
        ({'strides': (-4, 16)}, '-4'),
    ],
    ids=str,
)
def test_strides_that_cannot_be_reached(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SimplePyramid(16, **options)


def test_a_misspelt_argument_raises() -> None:
    with pytest.raises(TypeError, match='out_chanels'):
        SimplePyramid(16, out_chanels=8)
