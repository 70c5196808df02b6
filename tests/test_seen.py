"""What is kept of a forward pass, against the slow model of the oracle."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import oracle
from tiny import TINY, Make, picture
from vit5_dense import ViT5
from vit5_dense.errors import UserError
from vit5_dense.maps import look_inside

WINDOWS = {'window_size': 3, 'global_attn_indexes': (1,)}  # 3 does not divide 4 x 5


def expected_weights(model: ViT5, x: Tensor, block: int, window: int | None) -> np.ndarray:
    """Mean over both heads of all weights, (N, N), in float64 from the pixels on."""
    weights = dict(model.named_parameters())
    options = {} if model.blocks[0].attn.window_size is None else WINDOWS
    tokens = oracle.vit5_tokens(weights, x, 2, (4, 4), **options)[block][0]
    grid = oracle.embed(x, weights, (4, 4))[1]
    turns = [oracle.rotation_matrix(a) for a in oracle.token_angles(16, grid, (4, 4), 4)]
    name = f'blocks.{block}.'
    normed = oracle.rms_norm(tokens, weights[f'{name}norm1.weight'].double())
    qkv = (normed @ weights[f'{name}attn.qkv.weight'].double().T).view(-1, 3, 2, 16)
    rows = []
    for head in range(2):
        q, k = (
            torch.stack(
                [
                    turn @ one
                    for turn, one in zip(
                        turns,
                        oracle.rms_norm(
                            qkv[:, i, head], weights[f'{name}attn.{part}_norm.weight'].double()
                        ),
                        strict=True,
                    )
                ]
            )
            for i, part in enumerate('qk')
        )
        scores = (q @ k.T / math.sqrt(16)).exp() * oracle.visibility(grid, 4, window)
        rows.append(scores / scores.sum(1, keepdim=True))
    return torch.stack(rows).mean(0).detach().numpy()


@pytest.mark.parametrize(
    ('block', 'options', 'window'), [(2, {}, None), (1, WINDOWS, None), (2, WINDOWS, 3)]
)
def test_maps_are_the_weights_of_a_slow_model(
    make_vit5: Make, block: int, options: dict[str, Any], window: int | None
) -> None:
    """The picture of 60 x 70 pixels is padded to 4 x 5 patches."""
    model, x = make_vit5(**options), picture(60, 70)
    seen = look_inside(model, x)
    assert (seen.grid, seen.depth, seen.num_registers, seen.patch_size) == ((4, 5), 3, 4, 16)
    expected = expected_weights(model, x, block, window)[:, 1:21].reshape(-1, 4, 5)
    found = {0: seen.cls_attention(block), 1: seen.attention(block, 0, 0)}
    found |= {20: seen.attention(block, 3, 4), 8: seen.attention(block, 1, 2)}
    found |= {21: seen.register_attention(block, 0), 24: seen.register_attention(block, 3)}
    for token, weights in found.items():
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights, expected[token], atol=1e-5)
    if window:
        assert (found[1] > 0).sum() == 9
        assert (found[20] > 0).sum() == 2, 'what is left of the grid for the last window'


@pytest.mark.parametrize('block', [0, 1, 2])
def test_components_are_those_of_a_singular_value_decomposition(
    make_vit5: Make, block: int
) -> None:
    """Of the patches that are not padding, which is two of five columns here."""
    model, x = make_vit5(), picture(64, 80)
    x[..., 48:] = 0
    found = look_inside(model, x).pca(block)
    assert found.dtype == np.uint8
    taps, _ = model.forward_blocks(x, [block])
    patches = taps[0][0, 1:21].detach().double().numpy().reshape(4, 5, -1)[:, :3].reshape(12, -1)
    left, _, right = np.linalg.svd(patches - patches.mean(0), full_matrices=False)
    for i in range(3):
        component = left[:, i] * np.sign(right[i][abs(right[i]).argmax()])
        low, high = np.quantile(component, (0.01, 0.99))
        levels = 255 * ((component - low) / (high - low)).clip(0, 1)
        np.testing.assert_allclose(found[:, :3, i].flatten(), levels, atol=1)


def test_colours_are_the_same_at_every_call(make_vit5: Make) -> None:
    model, x = make_vit5(), picture(64, 80)
    first = look_inside(model, x)
    colours = first.pca(2)
    np.testing.assert_array_equal(first.pca(2), colours)
    np.testing.assert_array_equal(look_inside(model, x).pca(2), colours)
    assert colours.min() == 0
    assert colours.max() == 255


@pytest.mark.parametrize('value', [0.0, 1.0])
def test_a_picture_of_one_patch_has_maps(make_vit5: Make, value: float) -> None:
    seen = look_inside(make_vit5(), torch.full((1, 3, 1, 1), value))
    assert seen.attention(0, 0, 0).shape == (1, 1)
    assert seen.pca(0).tolist() == [[[0, 0, 0]]]


def test_a_backbone_is_left_as_it_was(make_vit5: Make) -> None:
    """Drop path is off while it looks, and nothing listens afterwards."""
    model, x = make_vit5(drop_path_rate=0.9, frozen_stages=1), picture(64, 80)
    expected = look_inside(model, x).pca(2)
    model.train()
    modes = [module.training for module in model.modules()]
    np.testing.assert_array_equal(look_inside(model, x).pca(2), expected)
    assert [module.training for module in model.modules()] == modes
    assert not any(block._forward_pre_hooks for block in model.blocks)


def test_a_compiled_backbone_is_looked_at_uncompiled(
    make_vit5: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, 'compile', partial(torch.compile, backend='aot_eager'))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    x = picture(64, 80)
    found = look_inside(make_vit5(compiled=True), x).attention(1, 2, 3)
    assert torch._dynamo.utils.counters['stats']['unique_graphs'] == 0
    np.testing.assert_array_equal(found, look_inside(make_vit5(), x).attention(1, 2, 3))


def test_adapters_are_seen(make_vit5: Make) -> None:
    pytest.importorskip('peft', reason='peft is not installed: pip install -e .[lora]')
    from vit5_dense.backbones import ViT5LoRA

    model = ViT5LoRA(arch=TINY, pretrain_img_size=64, out_indices=(2,), dropout=0.5)
    for name, param in model.named_parameters():
        if 'lora_B' in name:
            nn.init.normal_(param, std=0.1)
    merged = make_vit5(out_indices=(2,))
    merged.load_state_dict(model.merge())
    x = picture(64, 80)
    found, expected = (look_inside(one, x).attention(2, 1, 1) for one in (model.train(), merged))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_half_precision_is_seen(make_vit5: Make) -> None:
    x = picture(64, 80)
    found = look_inside(make_vit5().bfloat16(), x.bfloat16())
    expected = look_inside(make_vit5(), x)
    assert found.cls_attention(0).dtype == np.float32
    np.testing.assert_allclose(found.cls_attention(0), expected.cls_attention(0), rtol=0.1)
    assert found.pca(0).shape == (4, 5, 3)


def test_what_does_not_exist_is_refused_in_words(make_vit5: Make) -> None:
    seen = look_inside(make_vit5(), picture(64, 80))
    with pytest.raises(UserError, match='block 3 does not exist: blocks are 0 to 2'):
        seen.cls_attention(3)
    with pytest.raises(UserError, match='block -1'):
        seen.pca(-1)
    for patch in ((4, 0), (0, 5), (-1, 0)):
        with pytest.raises(UserError, match='4 rows and 5 columns'):
            seen.attention(0, *patch)
    for index in (4, -1):
        with pytest.raises(UserError, match=f'register {index} does not exist: there are 4'):
            seen.register_attention(0, index)
    with pytest.raises(ValueError, match='not 2'):
        look_inside(make_vit5(), picture(64, 80, batch=2))
    with pytest.raises(UserError, match='Conv2d'):
        look_inside(nn.Conv2d(3, 3, 1), picture(64, 80))


def test_without_registers_there_is_none_to_ask(make_vit5: Make) -> None:
    seen = look_inside(make_vit5(num_registers=0), picture(64, 80))
    assert 0 < seen.cls_attention(0).sum() < 1
    with pytest.raises(UserError, match='there are 0'):
        seen.register_attention(0, 0)
