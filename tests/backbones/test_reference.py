"""Parity with numbers that the reference implementation produced."""

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import oracle
from vit5_dense import ViT5

CASES = [
    ('native', 'native', 'interpolate'),
    ('native', 'native', 'extrapolate'),
    ('img96', 'img96.interpolate', 'interpolate'),
    ('img96', 'img96.extrapolate', 'extrapolate'),
    ('img128', 'img128.interpolate', 'interpolate'),
    ('img128', 'img128.extrapolate', 'extrapolate'),
]


@pytest.fixture(scope='module')
def reference(shared: Path) -> dict[str, Tensor]:
    path = shared / 'reference' / 'vit5_reference.safetensors'
    if not path.is_file():
        pytest.skip(f'no reference numbers at {path}')
    return pytest.importorskip('safetensors.torch').load_file(path)


def weights(reference: dict[str, Tensor], out_norm: bool) -> dict[str, Tensor]:
    """The reference's parameters that the backbone has."""
    state = {name[6:]: value for name, value in reference.items() if name.startswith('state.')}
    left_out = ('head.',) if out_norm else ('head.', 'norm.')
    return {
        name: value
        for name, value in state.items()
        if not name.startswith(left_out) and '.rope' not in name
    }


def build(reference: dict[str, Tensor], **options: Any) -> ViT5:
    model = ViT5(
        arch={'embed_dims': 32, 'depth': 3, 'num_heads': 2},
        pretrain_img_size=64,
        out_indices=(0, 1, 2),
        **options,
    )
    model.load_state_dict(weights(reference, options.get('out_norm', False)), strict=True)
    return model.eval()


@pytest.mark.parametrize(('picture', 'case', 'scaling'), CASES)
def test_every_token_of_every_block(
    reference: dict[str, Tensor], picture: str, case: str, scaling: str
) -> None:
    model = build(reference, rope_scaling=scaling)
    with torch.no_grad():
        tokens, grid = model.forward_tokens(reference[f'{picture}.image'])
    side = {'native': 4, 'img96': 6, 'img128': 8}[picture]
    assert grid == (side, side)
    assert len(tokens) == 3
    for index, found in enumerate(tokens):
        torch.testing.assert_close(
            found, reference[f'{case}.tokens.block{index}'], atol=1e-5, rtol=0
        )


@pytest.mark.parametrize(('picture', 'case', 'scaling'), CASES)
def test_embedding(reference: dict[str, Tensor], picture: str, case: str, scaling: str) -> None:
    """With both LayerScales at zero a block passes the embedded tokens on as they are."""
    model = build(reference, rope_scaling=scaling)
    for name, param in model.named_parameters():
        if 'gamma' in name:
            param.data.zero_()
    with torch.no_grad():
        tokens, _ = model.forward_tokens(reference[f'{picture}.image'])
    torch.testing.assert_close(tokens[0], reference[f'{case}.tokens.embed'], atol=1e-5, rtol=0)


@pytest.mark.parametrize(('picture', 'case', 'scaling'), CASES)
def test_final_norm_and_logits(
    reference: dict[str, Tensor], picture: str, case: str, scaling: str
) -> None:
    model = build(reference, rope_scaling=scaling, out_norm=True)
    with torch.no_grad():
        tokens, _ = model.forward_tokens(reference[f'{picture}.image'])
    torch.testing.assert_close(tokens[-1], reference[f'{case}.tokens.norm'], atol=1e-5, rtol=0)
    logits = tokens[-1][:, 0] @ reference['state.head.weight'].T + reference['state.head.bias']
    torch.testing.assert_close(logits, reference[f'{case}.logits'], atol=1e-5, rtol=0)


@pytest.mark.parametrize(('picture', 'case', 'scaling'), CASES)
def test_a_file_named_by_init_cfg_gives_the_reference_s_tokens(
    reference: dict[str, Tensor], tmp_path: Path, picture: str, case: str, scaling: str
) -> None:
    state = {name[6:]: value for name, value in reference.items() if name.startswith('state.')}
    torch.save({'model': state, 'epoch': 1}, tmp_path / 'official.pth')
    model = ViT5(
        arch={'embed_dims': 32, 'depth': 3, 'num_heads': 2},
        pretrain_img_size=64,
        out_indices=(2,),
        rope_scaling=scaling,
        init_cfg={'type': 'Pretrained', 'checkpoint': str(tmp_path / 'official.pth')},
    ).eval()
    model.init_weights()
    with torch.no_grad():
        tokens, _ = model.forward_tokens(reference[f'{picture}.image'])
    torch.testing.assert_close(tokens[0], reference[f'{case}.tokens.block2'], atol=1e-5, rtol=0)


@pytest.mark.parametrize(('picture', 'side'), [('img96', 6), ('img128', 8)])
def test_resampled_position_embedding(
    reference: dict[str, Tensor], picture: str, side: int
) -> None:
    from vit5_dense.layers.pos_embed import resample_pos_embed

    found = resample_pos_embed(reference['state.pos_embed'], (4, 4), (side, side))
    torch.testing.assert_close(found, reference[f'{picture}.pos_embed'], atol=1e-5, rtol=0)


@pytest.mark.parametrize(('picture', 'case', 'scaling'), CASES)
def test_the_oracle_of_the_other_tests_is_right(
    reference: dict[str, Tensor], picture: str, case: str, scaling: str
) -> None:
    found = oracle.vit5_tokens(
        weights(reference, False), reference[f'{picture}.image'], 2, (4, 4), rope_scaling=scaling
    )
    for name, value in zip(['embed', 'block0', 'block1', 'block2'], found, strict=True):
        torch.testing.assert_close(
            value.float(), reference[f'{case}.tokens.{name}'], atol=1e-5, rtol=0
        )


@pytest.mark.parametrize(
    ('official', 'arch', 'side', 'depth'),
    [
        ('vit5_small_patch16_224', 's', 224, 12),
        ('vit5_base_patch16_224', 'b', 224, 12),
        ('vit5_base_patch16_384', 'b', 384, 12),
        ('vit5_large_patch16_224', 'l', 224, 24),
        ('vit5_large_patch16_384', 'l', 384, 24),
        ('vit5_xlarge_patch16_224', 'xl', 224, 28),
    ],
)
def test_names_and_shapes_of_the_official_files(
    shared: Path, official: str, arch: str, side: int, depth: int
) -> None:
    path = shared / 'reference' / 'official_state_dict_shapes.json'
    if not path.is_file():
        pytest.skip(f'no list of shapes at {path}')
    shapes = json.loads(path.read_text())[official]
    expected = {
        name: tuple(shape)
        for name, shape in shapes.items()
        if not name.startswith(('head.', 'norm.')) and '.rope' not in name
    }
    with torch.device('meta'):
        model = ViT5(arch=arch, pretrain_img_size=side, out_indices=(depth - 1,))
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == expected
    found = sum(param.numel() for param in model.parameters())
    assert found == sum(prod(shape) for shape in expected.values())
