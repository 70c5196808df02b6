"""Any file to a bare one, with sizes read from the shapes."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import oracle
from tiny_run import call, scenes, write_config
from vit5_dense import ViT5
from vit5_dense.checkpoint import load_pretrained
from vit5_dense.checkpoint_io import CheckpointError, read_file, write_file
from vit5_dense.convert import convert_file, sizes_of
from vit5_dense.layers import resample_pos_embed


@pytest.fixture
def training_file(tmp_path: Path) -> Path:
    """A file in the layout of an official training run, 'model' all twos, 'model_ema' all ones."""
    backbone = ViT5(
        {'embed_dims': 48, 'depth': 2, 'num_heads': 3}, pretrain_img_size=80, out_indices=(1,)
    )
    state = {**backbone.state_dict(), 'norm.weight': torch.ones(48)}
    state |= {'head.weight': torch.ones(7, 48), 'head.bias': torch.ones(7)}
    state['blocks.0.attn.rope.freqs'] = torch.ones(4)
    content = {
        'model': {key: torch.full_like(value, 2) for key, value in state.items()},
        'model_ema': {key: torch.full_like(value, 1) for key, value in state.items()},
        'epoch': 3,
    }
    torch.save(content, tmp_path / 'training.pth')
    return tmp_path / 'training.pth'


def test_sizes_are_read_from_the_shapes(training_file: Path) -> None:
    state = torch.load(training_file, weights_only=True)['model']
    assert sizes_of(state, training_file) == {
        'arch': {'embed_dims': 48, 'depth': 2, 'num_heads': 3},
        'pretrain_img_size': 80,
        'patch_size': 16,
        'in_channels': 3,
        'num_registers': 4,
    }


@pytest.mark.parametrize(('ema', 'value', 'name'), [(True, 1, 'EMA'), (False, 2, 'model')])
def test_the_choice_of_weights_is_kept_and_recorded(
    training_file: Path, ema: bool, value: int, name: str
) -> None:
    state, account, meta = convert_file(training_file, ema)
    assert {float(tensor.unique()) for tensor in state.values()} == {value}
    assert meta == {'source': 'training.pth', 'weights': name, 'img_size': '80'}
    assert account.left_out == ['blocks.0.attn.rope.freqs']
    assert {'head.weight', 'norm.weight', 'pos_embed'} <= set(account.loaded)


def test_resampling_is_done_on_purpose_and_recorded(training_file: Path) -> None:
    content = torch.load(training_file, weights_only=True)
    content['model_ema']['pos_embed'] = torch.randn(1, 25, 48)
    torch.save(content, training_file)
    state, account, meta = convert_file(training_file, to_img_size=48)
    expected = resample_pos_embed(content['model_ema']['pos_embed'], (5, 5), (3, 3))
    torch.testing.assert_close(state['pos_embed'], expected)
    assert (meta['img_size'], meta['resampled_from']) == ('48', '80')
    assert account.resized == ['pos_embed: grid 5 to 3']
    with pytest.raises(CheckpointError, match='40 is no multiple of the patch size 16'):
        convert_file(training_file, to_img_size=40)


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_a_converted_file_loads_into_the_backbone(training_file: Path, suffix: str) -> None:
    state, _, meta = convert_file(training_file, dtype='bf16')
    path = training_file.with_name(f'bare{suffix}')
    write_file(path, state, meta)
    backbone = ViT5({'embed_dims': 48, 'depth': 2, 'num_heads': 3}, 80, out_indices=(0,))
    load_pretrained(backbone, str(path))  # of 2 blocks it needs one
    assert {float(param.unique()) for param in backbone.parameters()} == {1}
    assert [p.name for p in path.parent.glob('*.part')] == []


@pytest.mark.skipif(not hasattr(torch.serialization, 'safe_globals'), reason='needs torch 2.5')
def test_a_run_of_plain_mmengine_starts_a_backbone_and_converts(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without the hook of this package a checkpoint holds histories and numbers of numpy."""
    pytest.importorskip('mmseg.models')
    extra = 'custom_hooks = []\ntrain_cfg.update(max_iters=1, val_interval=1)\n'
    config = write_config(tmp_path, scenes(tmp_path_factory), extra)
    call('train', config, '--work-dir', tmp_path)
    plain = tmp_path / 'iter_1.pth'
    with pytest.raises(pickle.UnpicklingError):
        torch.load(plain, weights_only=True)
    saved = torch.load(plain, weights_only=False)['state_dict']
    expected = {
        key.removeprefix('backbone.'): value
        for key, value in saved.items()
        if key.startswith('backbone.')
    }
    options: dict[str, Any] = {
        'arch': {'embed_dims': 32, 'depth': 2, 'num_heads': 2},
        'pretrain_img_size': 64,
        'out_indices': (1,),
    }
    call('convert_checkpoint', plain, tmp_path / 'out.safetensors')
    for file in (plain, tmp_path / 'out.safetensors'):
        init_cfg = {'type': 'Pretrained', 'checkpoint': str(file)}
        backbone = ViT5(**options, init_cfg=init_cfg)
        backbone.init_weights()
        torch.testing.assert_close(dict(backbone.state_dict()), expected, rtol=0, atol=0)


def test_a_whole_file_is_asked_for(training_file: Path) -> None:
    content = torch.load(training_file, weights_only=True)
    del content['model_ema']['blocks.1.mlp.fc1.weight']
    torch.save(content, training_file)
    with pytest.raises(CheckpointError, match=r'missing: blocks\.1\.mlp\.fc1\.weight'):
        convert_file(training_file)
    del content['model_ema']['reg_token']
    torch.save(content, training_file)
    with pytest.raises(CheckpointError, match='is no ViT-5: it has no reg_token'):
        convert_file(training_file)


@pytest.mark.parametrize('ema', [True, False])
def test_a_converted_official_file_gives_the_features_of_its_weights(
    shared: Path, tmp_path: Path, ema: bool
) -> None:
    official = shared / 'reference' / 'official_training_checkpoint.pth'
    reference = load_file(shared / 'reference' / 'vit5_reference.safetensors')
    state, _, meta = convert_file(official, ema)
    write_file(tmp_path / 'out.safetensors', state, meta)
    arch = {'embed_dims': 32, 'depth': 3, 'num_heads': 2}
    backbone = ViT5(arch, 64, out_indices=(2,), out_norm=True).eval()
    load_pretrained(backbone, str(tmp_path / 'out.safetensors'))
    with torch.no_grad():
        tokens = backbone.forward_tokens(reference['native.image'])[0][0]
    if ema:  # the reference numbers were run with 'model'
        weights = read_file(official)['model_ema']
        last = oracle.vit5_tokens(weights, reference['native.image'], 2, (4, 4))[-1]
        norm = last * last.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        expected = (norm * weights['norm.weight']).float()
    else:
        expected = reference['native.tokens.norm']
    torch.testing.assert_close(tokens, expected, rtol=0, atol=1e-5)
