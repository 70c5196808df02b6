import os
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config, ConfigDict

from tiny_run import DEMO, REPO
from vit5_dense import config
from vit5_dense.config import (
    fit_machine,
    join_processes,
    load_config,
    replace_type,
    usable_cores,
    without_labels,
)
from vit5_dense.errors import UserError, run_tool


def message(*args: Any, **kwargs: Any) -> str:
    """The one line that loading a config ends in."""
    with pytest.raises(UserError) as info:
        load_config(*args, **kwargs)
    text = str(info.value)
    assert '\n' not in text
    return text


def test_a_recipe_is_named_by_file_or_by_package() -> None:
    by_file = load_config(str(DEMO))
    by_name = load_config('vit5_dense::upernet_vit5_ti_shapes.py')
    assert by_file.model == by_name.model


def test_options_are_merged() -> None:
    cfg = load_config(str(DEMO), {'train_cfg.max_iters': 7, 'model.backbone.arch': 's'})
    assert cfg.train_cfg.max_iters == 7
    assert cfg.train_cfg.type == 'IterBasedTrainLoop'
    assert cfg.model.backbone.arch == 's'


def test_a_missing_config_is_named_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = message('configs/nope.py')
    assert 'configs/nope.py' in text
    assert str(tmp_path) in text
    assert 'tmp' in message(str(tmp_path))  # a folder is no config


def test_a_missing_recipe_lists_those_there_are() -> None:
    assert 'upernet_vit5_b_ade20k.py' in message('vit5_dense::nope.py')


@pytest.mark.parametrize(
    'text',
    [
        'model = dict(',
        'x = undefined_name',
        'x = 1 / 0',
        'import no_such_module',
        "_base_ = './nope.py'",
        "custom_imports = dict(imports=['no_such_module'], allow_failed_imports=False)",
    ],
)
def test_a_config_with_a_mistake_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / 'mine.py'
    path.write_text(text + '\n')
    assert str(path) in message(str(path))


@pytest.mark.parametrize('bases', ['UserError', 'UserError, ImportError'])
def test_a_message_for_users_from_within_an_import_is_all_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bases: str
) -> None:
    """mmengine turns an ImportError into another; what is to be installed stays known."""
    (tmp_path / 'outer_of_two.py').write_text('import inner_of_two\n')
    (tmp_path / 'inner_of_two.py').write_text(
        'from vit5_dense.errors import UserError\n'
        f'class Missing({bases}): pass\n'
        "try: {}['ops']\n"
        "except KeyError as error: raise Missing('Run: pip install ops') from error\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / 'mine.py'
    path.write_text("custom_imports = dict(imports=['outer_of_two'], allow_failed_imports=False)\n")
    with pytest.raises(UserError) as info:
        load_config(str(path))
    assert str(info.value) == 'Run: pip install ops'
    assert type(info.value).__name__ == 'Missing'
    assert isinstance(info.value.__cause__, KeyError), 'its own reason, for a traceback'


def test_a_text_file_is_no_config(tmp_path: Path) -> None:
    (tmp_path / 'notes.txt').write_text('hello')
    assert 'notes.txt' in message(str(tmp_path / 'notes.txt'))


def test_a_base_without_a_model_is_refused() -> None:
    assert 'has no model' in message(str(REPO / 'configs' / '_base_' / 'runtime' / 'seg.py'))


@pytest.mark.parametrize(
    'options',
    [
        {'model.decode_head.in_channels.9': 3},
        {'model.backbone.arch.depth': 3},  # arch is a name: nothing to merge into
        {'train_cfg.max_iters.x': 3},
    ],
)
def test_options_that_do_not_fit_are_named(options: dict[str, Any]) -> None:
    assert '--cfg-options' in message(str(DEMO), options)


def fit(launcher: str = 'none', **cfg: Any) -> Config:
    default = {'model': {}, 'env_cfg': {'dist_cfg': {'backend': 'nccl'}}}
    fitted = Config({**default, **cfg})
    fit_machine(fitted, launcher)
    return fitted


@pytest.mark.parametrize(
    ('cuda', 'launcher', 'norm', 'backend'),
    [
        (False, 'none', 'BN', 'gloo'),
        (False, 'pytorch', 'BN', 'gloo'),
        (True, 'none', 'BN', 'nccl'),
        (True, 'pytorch', 'SyncBN', 'nccl'),
    ],
)
def test_syncbn_stays_only_where_processes_have_gpus(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, launcher: str, norm: str, backend: str
) -> None:
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: cuda)
    norm_cfg = {'type': 'SyncBN', 'requires_grad': True}
    cfg = fit(launcher, model={'head': {'norm_cfg': norm_cfg}, 'heads': [{'n': dict(norm_cfg)}]})
    assert cfg.model.head.norm_cfg == {'type': norm, 'requires_grad': True}
    assert cfg.model.heads[0].n.type == norm
    assert cfg.env_cfg.dist_cfg.backend == backend
    assert ('model_wrapper_cfg' in cfg) == (not cuda and launcher == 'pytorch')


def test_workers_beyond_the_cores_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, 'usable_cores', lambda: 2)
    cfg = fit(
        train_dataloader={'num_workers': 8, 'persistent_workers': True},
        val_dataloader={'num_workers': 1},
        test_dataloader={'num_workers': 0, 'persistent_workers': True},
    )
    assert cfg.train_dataloader.num_workers == 2
    assert cfg.val_dataloader.num_workers == 1
    assert cfg.test_dataloader == {'num_workers': 0, 'persistent_workers': False}


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, 'cpu_count', lambda: 64)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {3, 5, 7}, raising=False)
    assert usable_cores() == 3
    monkeypatch.delattr(os, 'sched_getaffinity')
    assert usable_cores() == 64


def test_types_are_replaced_at_any_depth() -> None:
    node = {'type': 'A', 'list': [{'type': 'A'}, ({'x': {'type': 'A'}},)], 'name': 'A'}
    replace_type(node, 'A', 'B')
    assert node == {'type': 'B', 'list': [{'type': 'B'}, ({'x': {'type': 'B'}},)], 'name': 'A'}


def test_labels_leave_a_pipeline_and_nothing_else_does() -> None:
    load, pack = {'type': 'LoadImageFromFile'}, {'type': 'PackSegInputs'}
    labels = ConfigDict(type='LoadAnnotations', reduce_zero_label=True)
    flips = [{'type': 'RandomFlip', 'prob': 0.0}, {'type': 'RandomFlip', 'prob': 1.0}]
    assert without_labels([load, labels, pack]) == [load, pack]
    tta = {'type': 'TestTimeAug', 'transforms': [flips, [labels], [pack]]}
    assert without_labels([load, tta]) == [
        load,
        {'type': 'TestTimeAug', 'transforms': [flips, [pack]]},
    ]
    assert tta['transforms'] == [flips, [labels], [pack]], 'the original stays as it is'


def test_the_launcher_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('LOCAL_RANK', raising=False)
    join_processes('none')
    with pytest.raises(UserError, match=r'dist_train\.sh'):
        join_processes('pytorch')


def test_mistakes_end_in_one_line_and_status_2(capsys: pytest.CaptureFixture) -> None:
    def fails() -> None:
        raise UserError('wrong')

    def interrupted() -> None:
        raise KeyboardInterrupt

    assert run_tool(fails) == 2
    assert capsys.readouterr().err == 'error: wrong\n'
    assert run_tool(interrupted) == 130
    assert [run_tool(lambda value=value: value) for value in (0, 1, None, {'mIoU': 3.0})] == [
        0,
        1,
        0,
        0,
    ]
    with pytest.raises(ZeroDivisionError):  # our own faults keep their traceback
        run_tool(lambda: 1 / 0)
