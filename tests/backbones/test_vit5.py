"""The backbone: size table, any picture size, token layout, taps and state dict."""

from typing import Any

import pytest
import torch
from mmengine.registry import MODELS

import oracle
from tiny import TINY, Make, expected_tokens, gradients, picture
from vit5_dense import ViT5

SIZES = {
    (1, 1): (1, 1),
    (15, 17): (1, 2),
    (16, 16): (1, 1),
    (224, 224): (14, 14),
    (333, 500): (21, 32),
    (512, 1024): (32, 64),
}


@pytest.mark.parametrize(
    ('arch', 'side', 'dim', 'depth', 'published'),
    [
        ('s', 224, 384, 12, 22.04),
        ('b', 224, 768, 12, 86.54),
        ('b', 384, 768, 12, 86.84),
        ('l', 224, 1024, 24, 304.26),
        ('l', 384, 1024, 24, 304.65),
        ('xl', 224, 1152, 28, 448.51),
    ],
)
def test_parameter_counts_are_the_published_ones_less_head_and_final_norm(
    arch: str, side: int, dim: int, depth: int, published: float
) -> None:
    with torch.device('meta'):
        model = ViT5(arch=arch, pretrain_img_size=side)
    count = sum(param.numel() for param in model.parameters())
    head, norm = 1000 * dim + 1000, dim
    assert (count + head + norm) / 1e6 == pytest.approx(published, abs=0.006)
    assert len(model.blocks) == depth
    assert model.embed_dims == dim


@pytest.mark.parametrize(
    ('arch', 'taps'),
    [('b', (2, 5, 8, 11)), ('l', (5, 11, 17, 23)), ('xl', (6, 13, 20, 27))],
)
def test_the_default_taps_end_the_quarters_of_the_depth(arch: str, taps: tuple[int, ...]) -> None:
    with torch.device('meta'):
        assert ViT5(arch=arch).out_indices == taps


def test_a_depth_without_quarters_asks_for_out_indices() -> None:
    with pytest.raises(ValueError, match='depth of 3'):
        ViT5(arch=TINY)


def test_tiny_is_192_wide_12_deep_and_has_3_heads() -> None:
    model = ViT5(arch='ti')
    assert model.embed_dims == 192
    assert len(model.blocks) == 12
    assert model.blocks[0].attn.q_norm.weight.shape == (64,)


def test_registered_at_the_root_registry() -> None:
    model = MODELS.build({'type': 'ViT5', 'arch': TINY, 'out_indices': (1,)})
    assert isinstance(model, ViT5)


def test_fresh_weights() -> None:
    """LayerScale at 1e-4, norms at one, biases at zero, and the rest random but small."""
    model = ViT5(arch=TINY, out_indices=(2,), out_norm=True)
    model.init_weights()
    for name, param in model.named_parameters():
        if 'gamma' in name:
            assert torch.equal(param.data, torch.full_like(param, 1e-4)), name
        elif 'norm' in name:
            assert torch.equal(param.data, torch.ones_like(param)), name
        elif param.ndim > 1:
            assert 0 < param.std() < 0.5, name


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('window', [None, 7])
@pytest.mark.parametrize('size', SIZES)
def test_any_size_gives_the_promised_shapes(
    size: tuple[int, int], window: int | None, dtype: torch.dtype, training: bool
) -> None:
    model = ViT5(
        arch={**TINY, 'depth': 2},
        out_indices=(0, 1),
        window_size=window,
        global_attn_indexes=() if window is None else (1,),
        drop_path_rate=0.2,
    )
    model.to(dtype).train(training)
    batch = 1 if max(size) > 224 else 2
    maps = model(picture(*size, batch=batch).to(dtype))
    assert [tuple(out.shape) for out in maps] == [(batch, 32, *SIZES[size])] * 2
    assert all(out.dtype == dtype and out.isfinite().all() for out in maps)
    sum(out.float().sum() for out in maps).backward()
    assert all(
        param.grad.isfinite().all() for param in model.parameters() if param.grad is not None
    )


def test_the_real_small_size() -> None:
    model = ViT5(arch='s').eval()
    with torch.no_grad():
        maps = model(picture(224, 224))
    assert [tuple(out.shape) for out in maps] == [(1, 384, 14, 14)] * 4
    assert all(out.isfinite().all() for out in maps)


@pytest.mark.parametrize('rope_scaling', ['interpolate', 'extrapolate'])
@pytest.mark.parametrize('grid', [(4, 4), (8, 32), (32, 8), (7, 5), (1, 9), (4, 6)])
def test_every_token_on_grids_of_any_shape(
    make_vit5: Make, grid: tuple[int, int], rope_scaling: str
) -> None:
    model = make_vit5(rope_scaling=rope_scaling)
    x = picture(grid[0] * 16, grid[1] * 16, batch=2)
    with torch.no_grad():
        tokens, found_grid = model.forward_tokens(x)
    assert found_grid == grid
    for found, expected in zip(
        tokens, expected_tokens(model, x, rope_scaling=rope_scaling), strict=True
    ):
        torch.testing.assert_close(found, expected.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('size', [(1, 1), (15, 17), (47, 65)])
def test_sides_are_padded_with_zeros_at_the_bottom_and_on_the_right(
    make_vit5: Make, size: tuple[int, int]
) -> None:
    model, x = make_vit5(), picture(*size, batch=2)
    with torch.no_grad():
        tokens, _ = model.forward_tokens(x)
    for found, expected in zip(tokens, expected_tokens(model, x), strict=True):
        torch.testing.assert_close(found, expected.float(), atol=1e-5, rtol=1e-5)


def test_a_picture_does_not_depend_on_the_others_of_its_batch(make_vit5: Make) -> None:
    model, x = make_vit5(window_size=4), picture(80, 144, batch=3)
    with torch.no_grad():
        together, alone = model(x)[-1], torch.cat([model(one[None])[-1] for one in x])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_maps_are_the_patches_of_the_tokens(make_vit5: Make) -> None:
    model, x = make_vit5(), picture(64, 96, batch=2)
    with torch.no_grad():
        maps, (tokens, grid) = model(x), model.forward_tokens(x)
    assert isinstance(maps, tuple)
    assert isinstance(tokens, list)
    assert grid == (4, 6)
    for out, all_tokens in zip(maps, tokens, strict=True):
        assert all_tokens.shape == (2, 1 + 24 + 4, 32)
        for i in range(4):
            for j in range(6):
                assert torch.equal(out[:, :, i, j], all_tokens[:, 1 + i * 6 + j])


@pytest.mark.parametrize('window', [None, 3])
def test_special_tokens_never_reach_the_map(make_vit5: Make, window: int | None) -> None:
    """With blocks that do nothing and patches that hold their number, the map counts upwards."""
    model = make_vit5(window_size=window)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if 'gamma' in name or 'patch_embed' in name:
                param.zero_()
        model.pos_embed.copy_(torch.arange(16.0).view(1, 16, 1).expand(1, 16, 32))
        model.cls_token.fill_(-1)
        model.reg_token.copy_(-torch.arange(2.0, 6.0).view(1, 4, 1).expand(1, 4, 32))
        maps, (tokens, _) = model(picture(64, 64)), model.forward_tokens(picture(64, 64))
    for out, all_tokens in zip(maps, tokens, strict=True):
        assert out[0, 0].flatten().tolist() == list(range(16))
        assert all_tokens[0, :, 0].tolist() == [-1, *range(16), -2, -3, -4, -5]


@pytest.mark.parametrize('registers', [0, 1, 4])
def test_number_of_registers(make_vit5: Make, registers: int) -> None:
    model = make_vit5(num_registers=registers)
    tokens, _ = model.forward_tokens(picture(32, 48))
    assert tokens[0].shape == (1, 1 + 6 + registers, 32)
    assert model(picture(32, 48))[0].shape == (1, 32, 2, 3)


def test_other_patch_size_and_channels() -> None:
    model = ViT5(arch=TINY, pretrain_img_size=64, patch_size=8, in_channels=1, out_indices=(2,))
    assert model.pos_embed.shape == (1, 64, 32)
    assert model.patch_embed.proj.weight.shape == (32, 1, 8, 8)
    assert model(torch.randn(1, 1, 33, 40))[0].shape == (1, 32, 5, 5)


@pytest.mark.parametrize(
    ('given', 'expected'),
    [
        ((0, 2), (0, 2)),
        ((-1,), (2,)),
        ((-3, -1), (0, 2)),
        ((0, -2), (0, 1)),
        ([1], (1,)),
    ],
)
def test_taps_count_from_zero_or_from_the_end(
    make_vit5: Make, given: Any, expected: tuple[int, ...]
) -> None:
    model, x = make_vit5(out_indices=given), picture(64, 64)
    assert tuple(model.out_indices) == expected
    every = make_vit5()
    every.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        for found, index in zip(model(x), expected, strict=True):
            torch.testing.assert_close(found, every(x)[index], atol=1e-6, rtol=1e-6)


def test_blocks_beyond_the_last_tap_are_not_built() -> None:
    model = ViT5(arch={**TINY, 'depth': 9}, out_indices=(0, 3))
    assert len(model.blocks) == 4
    assert not any(name.startswith('blocks.4') for name in model.state_dict())


@pytest.mark.parametrize('out_norm', [True, False])
def test_the_final_norm_exists_only_where_it_is_used(make_vit5: Make, out_norm: bool) -> None:
    model, x = make_vit5(out_norm=out_norm), picture(64, 96)
    assert ('norm.weight' in model.state_dict()) is out_norm
    expected = expected_tokens(model, x)
    if out_norm:
        expected = [oracle.rms_norm(value, model.norm.weight.double()) for value in expected]
    for found, value in zip(model.forward_tokens(x)[0], expected, strict=True):
        torch.testing.assert_close(found, value.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    'options',
    [
        {},
        {'out_norm': True},
        {'out_indices': (0,)},
        {'window_size': 2},
        {'window_size': 2, 'global_attn_indexes': (1,)},
        {'with_cp': True},
        {'num_registers': 0},
    ],
    ids=str,
)
def test_every_parameter_gets_a_gradient(make_vit5: Make, options: dict[str, Any]) -> None:
    model = make_vit5(**options).train()
    found = gradients(model, picture(64, 80))
    sizes = {name: param.numel() for name, param in model.named_parameters() if param.numel()}
    assert set(found) >= set(sizes)
    assert all(found[name].abs().sum() > 0 for name in sizes)


def test_state_dict_has_parameters_only_and_none_depends_on_the_input(make_vit5: Make) -> None:
    model = make_vit5()
    before = {name: value.shape for name, value in model.state_dict().items()}
    model(picture(128, 48))
    after = {name: value.shape for name, value in model.state_dict().items()}
    assert after == before
    assert set(before) == {name for name, _ in model.named_parameters()}


def test_weights_saved_at_one_size_load_strictly_for_another(make_vit5: Make) -> None:
    saved = make_vit5()
    saved(picture(64, 64))
    for size in [(128, 128), (96, 160)]:
        other = ViT5(arch=TINY, pretrain_img_size=64, out_indices=(0, 1, 2)).eval()
        other(picture(*size))
        assert not any(other.load_state_dict(saved.state_dict(), strict=True))
        x = picture(*size)
        with torch.no_grad():
            torch.testing.assert_close(other(x), saved(x), atol=0, rtol=0)


def test_weights_of_another_grid_are_refused_and_not_bent(make_vit5: Make) -> None:
    """The grid belongs to the weights: a model told another one cannot take them silently."""
    with pytest.raises((ValueError, RuntimeError), match='pos_embed'):
        make_vit5(pretrain_img_size=96).load_state_dict(make_vit5().state_dict(), strict=True)


def test_the_input_size_never_changes_the_grid_of_positions(
    make_vit5: Make, sdpa_calls: list[dict[str, Any]]
) -> None:
    """Queries at 8 x 8 are the same before and after the model saw other sizes."""
    model, x = make_vit5(), picture(128, 128)
    with torch.no_grad():
        model(x)
        first = [call['q'] for call in sdpa_calls]
        model(picture(64, 64))
        model(picture(32, 224))
        sdpa_calls.clear()
        model(x)
    assert all(torch.equal(a, call['q']) for a, call in zip(first, sdpa_calls, strict=True))
    assert model.pretrain_grid == (4, 4)
