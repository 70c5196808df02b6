from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from torch import Tensor, nn
from torch.testing import assert_close

from tiny import TINY
from vit5_dense.checkpoint import CheckpointError, load_trained

State = dict[str, Tensor]


def random_state(model: nn.Module) -> State:
    """Weights of the model's shapes that no initialisation gives."""
    return {key: torch.rand(v.shape).to(v.dtype) for key, v in model.state_dict().items()}


def save(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def assert_holds(model: nn.Module, state: State) -> None:
    assert_close(dict(model.state_dict()), state, rtol=0, atol=0)


def segmentor_cfg(checkpoint: str | None, classes: int = 3) -> dict[str, Any]:
    init = {'type': 'Pretrained', 'checkpoint': checkpoint} if checkpoint else None
    backbone = {'type': 'ViT5', 'arch': TINY, 'pretrain_img_size': 64, 'out_indices': (0, 1, 2)}
    head = {'type': 'FCNHead', 'in_channels': 32, 'channels': 8, 'num_convs': 1}
    return {
        'type': 'EncoderDecoder',
        'backbone': {**backbone, 'init_cfg': init},
        'decode_head': {**head, 'num_classes': classes, 'norm_cfg': {'type': 'BN'}},
        'train_cfg': {},
        'test_cfg': {'mode': 'whole'},
    }


def build(cfg: dict[str, Any]) -> nn.Module:
    registry = pytest.importorskip('mmseg.registry')
    pytest.importorskip('mmseg.models')
    return registry.MODELS.build(ConfigDict(cfg))


def test_loaded_weights_survive_the_initialisation_of_a_segmentor(tmp_path: Path) -> None:
    state = random_state(build(segmentor_cfg(None)).backbone)
    model = build(segmentor_cfg(str(save(tmp_path / 'file.pth', state))))
    model.init_weights()
    assert_holds(model.backbone, state)
    model.init_weights()
    assert_holds(model.backbone, state)


def test_init_cfg_is_the_only_way_to_name_a_file() -> None:
    build(segmentor_cfg(None)).init_weights()  # offline
    with pytest.raises(TypeError, match='pretrained'):
        build(segmentor_cfg(None) | {'pretrained': 'file.pth'})


def test_a_trained_model_loads_whole_with_its_meta(tmp_path: Path) -> None:
    model = build(segmentor_cfg(None))
    state = random_state(model)
    content = {'state_dict': state, 'meta': {'dataset_meta': {'classes': ('a',)}}}
    file = save(tmp_path / 'iter_1.pth', content)
    assert load_trained(model, file)['dataset_meta']['classes'] == ('a',)
    assert_holds(model, state)

    wrapped = nn.Module()
    wrapped.module = build(segmentor_cfg(None))
    load_trained(wrapped, file)
    assert_holds(wrapped.module, state)

    assert load_trained(model, save(tmp_path / 'bare.pth', state)) == {}


@pytest.mark.skipif(not hasattr(torch.serialization, 'safe_globals'), reason='needs torch 2.5')
def test_a_model_that_plain_mmengine_trained_loads(tmp_path: Path) -> None:
    """With numpy numbers and histories of mmengine's own beside the weights."""
    model = build(segmentor_cfg(None))
    state = random_state(model)
    hub = {
        'loss': HistoryBuffer([1.0, 2.0], [1, 1]),
        'x': np.float64(3),
        'y': np.ones(2, np.float32),
    }
    content = {'state_dict': state, 'message_hub': hub, 'meta': {'epoch': 1}}
    assert load_trained(model, save(tmp_path / 'iter_1.pth', content)) == {'epoch': 1}
    assert_holds(model, state)
    # histories share a table of methods, which the file must not change
    assert HistoryBuffer([1.0, 3.0], [1, 1]).statistics('mean') == 2.0


def test_a_model_of_other_classes_is_refused(tmp_path: Path) -> None:
    file = save(tmp_path / 'f.pth', {'state_dict': random_state(build(segmentor_cfg(None)))})
    with pytest.raises(CheckpointError) as info:
        load_trained(build(segmentor_cfg(None, classes=150)), file)
    message = str(info.value)
    assert str(file) in message
    assert 'decode_head.conv_seg.weight is (3, 8, 1, 1), wanted (150, 8, 1, 1)' in message


@pytest.mark.parametrize('fault', ['missing', 'unknown'])
def test_a_trained_model_with_a_key_too_few_or_many_is_refused(tmp_path: Path, fault: str) -> None:
    model = build(segmentor_cfg(None))
    state = random_state(model)
    if fault == 'missing':
        del state['decode_head.conv_seg.bias']
    else:
        state['neck.weight'] = torch.ones(2)
    with pytest.raises(CheckpointError, match=f'{fault}: '):
        load_trained(model, save(tmp_path / 'file.pth', {'state_dict': state}))
