from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer, MessageHub

from tiny_run import call, trained, write_config
from vit5_dense import __version__
from vit5_dense.hooks.plain_checkpoint import from_plain, to_plain

ALLOWED = (dict, list, tuple, str, bool, int, float, type(None), torch.Tensor)


class Size(NamedTuple):
    """Stands for what a user's hook may put into the hub."""

    number: Any
    names: Any


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def test_objects_become_tensors_numbers_and_containers() -> None:
    hub = {
        'loss': HistoryBuffer([0.5, 0.25], [1, 2]),
        'array': np.array([[1, 2]]),
        'number': np.float32(1.5),
        'nested': [OrderedDict(a=np.int64(3)), (None, 'text', True)],
        'names': np.array([['sky', 'sea']]),
        'mixed': np.array([np.float32(0.5), 'sea', None], dtype=object),
        'named': Size(np.int64(2), [np.str_('wide')]),
    }
    plain = to_plain(hub)
    assert all(type(leaf) in ALLOWED for leaf in leaves(plain))
    assert plain['array'].tolist() == [[1, 2]]
    assert plain['number'] == 1.5
    assert plain['nested'] == [{'a': 3}, (None, 'text', True)]
    assert plain['names'] == [['sky', 'sea']]
    assert plain['mixed'] == [0.5, 'sea', None]
    assert plain['named'] == (2, ['wide'])
    assert type(plain['named']) is tuple, 'a class of its own would not load'
    assert isinstance(hub['loss'], HistoryBuffer), 'the running hub stays as it is'


def test_histories_come_back(tmp_path: Path) -> None:
    torch.save(to_plain({'hub': {'loss': HistoryBuffer([0.5, 0.25], [1, 2])}}), tmp_path / 'a.pth')
    back = from_plain(torch.load(tmp_path / 'a.pth', weights_only=True))['hub']['loss']
    assert isinstance(back, HistoryBuffer)
    log, counts = back.data
    assert (log.tolist(), counts.tolist()) == ([0.5, 0.25], [1, 2])
    back.update(0.125)  # as training goes on
    assert back.current() == 0.125


def test_a_checkpoint_loads_without_allow_list_and_says_what_it_is_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run = trained(tmp_path_factory)
    for path in (run.checkpoint, *run.checkpoint.parent.glob('best_*.pth')):
        content = torch.load(path, weights_only=True)
        assert {type(leaf) for leaf in leaves(content)} <= set(ALLOWED)
        meta = content['meta']
        assert len(meta['dataset_meta']['classes']) == 12
        assert meta['vit5_dense']['version'] == __version__
        assert meta['vit5_dense']['embed_dims'] == 32
        assert meta['vit5_dense']['depth'] == 2


def test_a_resumed_run_has_the_history_of_the_first(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = trained(tmp_path_factory)
    saved = torch.load(run.checkpoint, weights_only=True)['message_hub']['log_scalars']
    config = write_config(tmp_path, run.data, 'train_cfg.update(max_iters=6)\n')
    call('train', config, '--work-dir', tmp_path / 'work', '--resume', run.checkpoint)
    history = MessageHub.get_current_instance().get_scalar('train/loss')
    assert isinstance(history, HistoryBuffer)
    log, counts = history.data
    assert log[:4].tolist() == saved['train/loss']['log'].tolist()
    assert len(log) == len(counts) == 6
