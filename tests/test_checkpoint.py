import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close

from tiny import TINY, Make
from vit5_dense import ViT5
from vit5_dense.checkpoint import CheckpointError, compare, convert, load_pretrained
from vit5_dense.checkpoint_io import read_file

State = dict[str, Tensor]
#: torch before 2.5 reads nothing but tensors and plain containers
new_torch = pytest.mark.skipif(
    not hasattr(torch.serialization, 'safe_globals'), reason='needs torch 2.5'
)
RESNET = {'conv1.weight': torch.ones(2), 'layer1.0.bn1.running_mean': torch.ones(2)}


def random_state(model: nn.Module, seed: int = 0) -> State:
    """Weights of the model's shapes that no initialisation gives."""
    generator = torch.Generator().manual_seed(seed)
    return {key: torch.rand(v.shape, generator=generator) for key, v in model.state_dict().items()}


def official(state: State) -> State:
    """What an official file holds beside the backbone."""
    extra = {'norm.weight': torch.ones(32), 'head.weight': torch.ones(10, 32)}
    extra |= {'head.bias': torch.ones(10), 'blocks.0.attn.rope.freqs': torch.ones(4)}
    return {**state, **extra, 'blocks.2.attn.rope_reg.freqs': torch.ones(4)}


def save(path: Path, content: Any) -> str:
    torch.save(content, path)
    return str(path)


def assert_holds(model: nn.Module, state: State) -> None:
    assert_close(dict(model.state_dict()), state, rtol=0, atol=0)


def refusal(model: ViT5, checkpoint: object) -> str:
    """The message of the CheckpointError; the model must be as before."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(CheckpointError) as info:
        load_pretrained(model, str(checkpoint))
    assert_holds(model, before)
    return str(info.value)


@pytest.mark.parametrize('wrapper', ['', 'model', 'model_ema', 'state_dict', 'module'])
@pytest.mark.parametrize(
    'prefix',
    ['', 'module.', 'model.', 'backbone.', '_orig_mod.', 'module.backbone.', 'model._orig_mod.'],
)
def test_every_wrapper_and_prefix_loads_whole(
    make_vit5: Make, tmp_path: Path, wrapper: str, prefix: str
) -> None:
    model = make_vit5()
    state = random_state(model)
    content = {prefix + key: value for key, value in official(state).items()}
    if wrapper:
        content = {wrapper: content, 'epoch': 3, 'optimizer': {'state': {}}}
    said = load_pretrained(model, save(tmp_path / 'file.pth', content))
    assert_holds(model, state)
    total = len(state)
    assert f'{total} of {total}' in said


def test_a_segmentors_file_gives_its_backbone(make_vit5: Make, tmp_path: Path) -> None:
    model = make_vit5()
    state = random_state(model)
    content = {f'backbone.{key}': value for key, value in state.items()}
    content |= {'decode_head.conv_seg.weight': torch.ones(2), 'neck.levels.0.weight': torch.ones(2)}
    load_pretrained(model, save(tmp_path / 'file.pth', {'state_dict': content, 'meta': {}}))
    assert_holds(model, state)


def test_the_content_tells_the_format_not_the_name(make_vit5: Make, tmp_path: Path) -> None:
    model = make_vit5()
    state = random_state(model)
    save_file(state, tmp_path / 'weights.pth')
    load_pretrained(model, str(tmp_path / 'weights.pth'))
    assert_holds(model, state)
    other = random_state(model, seed=1)
    load_pretrained(model, save(tmp_path / 'weights.safetensors', other))
    assert_holds(model, other)


def test_blocks_beyond_the_last_tap_are_left_out(make_vit5: Make, tmp_path: Path) -> None:
    file = save(tmp_path / 'file.pth', random_state(make_vit5()))
    model = make_vit5(out_indices=(0,))
    load_pretrained(model, file)
    assert_holds(model, {key: torch.load(file)[key] for key in model.state_dict()})


def test_the_norm_is_loaded_where_it_is_built(make_vit5: Make, tmp_path: Path) -> None:
    model = make_vit5(out_norm=True)
    state = random_state(model)
    load_pretrained(model, save(tmp_path / 'file.pth', official(state) | state))
    assert_holds(model, state)


@new_torch
def test_the_arguments_of_an_official_run_do_no_harm(make_vit5: Make, tmp_path: Path) -> None:
    model = make_vit5()
    content = {'model': random_state(model), 'args': argparse.Namespace(lr=1.0)}
    load_pretrained(model, save(tmp_path / 'file.pth', content))
    assert_holds(model, content['model'])


@new_torch
def test_model_ema_wins_and_is_named(make_vit5: Make, shared: Path) -> None:
    file = shared / 'reference' / 'official_training_checkpoint.pth'
    if not file.is_file():
        pytest.skip(f'no {file}')
    model = make_vit5()
    said = load_pretrained(model, str(file))
    content = read_file(file)
    assert_holds(model, {key: content['model_ema'][key] for key in model.state_dict()})
    assert not torch.equal(model.cls_token, content['model']['cls_token'])
    assert 'EMA' in said


@pytest.mark.parametrize('side', [12, 14, 24])
def test_position_embeddings_of_all_published_grids_convert(side: int, tmp_path: Path) -> None:
    model = ViT5(arch=TINY, pretrain_img_size=16 * side, out_indices=(0,))
    state = random_state(model)
    assert state['pos_embed'].shape == (1, side * side, 32)
    load_pretrained(model, save(tmp_path / 'file.pth', state))
    assert_holds(model, state)


def test_a_position_embedding_with_a_row_for_cls_is_refused(tmp_path: Path) -> None:
    model = ViT5(arch=TINY, out_indices=(0,))
    state = random_state(model) | {'pos_embed': torch.zeros(1, 197, 32)}
    message = refusal(model, save(tmp_path / 'file.pth', state))
    assert '197' in message


@pytest.mark.parametrize(('patch', 'setting'), [(16, 384), (8, 192)])
def test_another_grid_names_the_value_to_set(tmp_path: Path, patch: int, setting: int) -> None:
    model = ViT5(arch=TINY, pretrain_img_size=14 * patch, patch_size=patch, out_indices=(0,))
    state = random_state(model) | {'pos_embed': torch.zeros(1, 576, 32)}
    message = refusal(model, save(tmp_path / 'file.pth', state))
    assert '24 x 24' in message
    assert '14 x 14' in message
    assert f'set pretrain_img_size={setting}' in message


@pytest.mark.parametrize('side', [12, 14, 24])
def test_the_named_value_makes_the_file_load(side: int, tmp_path: Path) -> None:
    right = ViT5(arch=TINY, pretrain_img_size=16 * side, out_indices=(0,))
    state = random_state(right)
    file = save(tmp_path / 'file.pth', state)
    wrong = ViT5(arch=TINY, pretrain_img_size=64, out_indices=(0,))
    setting = refusal(wrong, file).rsplit('pretrain_img_size=', 1)[1]
    mended = ViT5(arch=TINY, pretrain_img_size=int(setting), out_indices=(0,))
    load_pretrained(mended, file)
    assert_holds(mended, state)


def test_another_network_is_refused_with_an_account(make_vit5: Make, tmp_path: Path) -> None:
    message = refusal(make_vit5(), save(tmp_path / 'resnet.pth', {'state_dict': RESNET}))
    total = len(make_vit5().state_dict())
    assert f'0 of {total}' in message
    assert 'conv1.weight' in message
    assert 'blocks.0.' in message or 'cls_token' in message
    assert len(message.splitlines()) < 20


def test_an_empty_state_dict_is_refused(make_vit5: Make, tmp_path: Path) -> None:
    assert '0 of' in refusal(make_vit5(), save(tmp_path / 'file.pth', {'model': {}}))


@pytest.mark.parametrize('fault', ['missing', 'unknown', 'misshapen'])
def test_one_wrong_key_is_enough_to_refuse(make_vit5: Make, tmp_path: Path, fault: str) -> None:
    model = make_vit5()
    state = random_state(model)
    name = 'blocks.1.mlp.fc1.weight'
    if fault == 'missing':
        del state[name]
    elif fault == 'unknown':
        name = 'blocks.1.mlp.fc3.weight'
        state[name] = torch.ones(2)
    else:
        state[name] = torch.ones(7, 32)
    message = refusal(model, save(tmp_path / 'file.pth', state))
    assert f'{fault}: {name}' in message
    if fault == 'misshapen':
        assert '(7, 32)' in message
        assert '(128, 32)' in message


def test_official_keys_and_shapes_fit_every_published_size(shared: Path) -> None:
    file = shared / 'reference' / 'official_state_dict_shapes.json'
    if not file.is_file():
        pytest.skip(f'no {file}')
    published = json.loads(file.read_text())
    assert published
    checked = 0
    for name, shapes in published.items():
        size = next(
            (s for s in ('small', 'base', 'large', 'xlarge') if f'_{s}_' in f'_{name}_'), ''
        )
        assert size, name
        arch = {'small': 's', 'base': 'b', 'large': 'l', 'xlarge': 'xl'}[size]
        side = 384 if '384' in name else 224
        depth = {'l': 24, 'xl': 28}.get(arch, 12)
        with torch.device('meta'):
            model = ViT5(arch=arch, pretrain_img_size=side, out_indices=(depth - 1,))
            state = {key: torch.zeros(shape) for key, shape in shapes.items()}
        fitting, account = convert({'model': state}, model.state_dict())
        assert account.complete, f'{name}: {account}'
        assert set(fitting) == set(model.state_dict())
        checked += 1
    assert checked == len(published)


@pytest.mark.parametrize('only', ['base_layer.weight', 'lora_A.default.weight', 'lora_scale'])
def test_files_with_and_without_lora_are_told_apart(only: str) -> None:
    plain = {'backbone.blocks.0.attn.qkv.weight': torch.ones(2)}
    layer = '' if only == 'lora_scale' else 'blocks.0.attn.qkv.'
    lora = {f'backbone.{layer}{only}': torch.ones(2)}
    assert 'backbone.type=ViT5LoRA, or merge' in str(compare(lora, plain, ''))
    assert str(compare(plain, lora, '')).endswith('backbone.type=ViT5')
    for state in (plain, lora):
        assert 'LoRA' not in str(compare(state, state, ''))
    assert 'LoRA' not in str(compare({}, plain, ''))
