from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner

from vit5_dense import building as module
from vit5_dense.building import (
    build_runner,
    check_classes,
    check_data,
    check_end,
    check_sizes,
    check_strides,
    runner_class,
)
from vit5_dense.config import load_config
from vit5_dense.errors import UserError


def test_detection_is_asked_for_its_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(module, 'require_det', lambda: asked.append('det'))
    monkeypatch.setattr(module, 'require_seg', lambda: asked.append('seg'))
    for scope in ('mmdet', 'mmseg'):
        module.require_framework(Config({'default_scope': scope}))
    assert asked == ['det', 'seg']


def data_cfg(root: Path, **dataset: Any) -> Config:
    prefix = {'img_path': 'images', 'seg_map_path': 'labels'}
    loader = {'dataset': {'data_root': str(root), 'data_prefix': prefix, **dataset}}
    return Config({'train_dataloader': loader, 'data_help': 'Get it at example.org'})


def test_data_folders_must_exist_and_hold_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = data_cfg(Path('set'))
    with pytest.raises(UserError, match='Get it at') as info:
        check_data(cfg, ['train'])
    assert f'{tmp_path}/set/images does not exist' in str(info.value)

    (tmp_path / 'set/images').mkdir(parents=True)
    with pytest.raises(UserError, match='is empty') as info:
        check_data(cfg, ['train'])
    assert f'{tmp_path}/set/images' in str(info.value)

    (tmp_path / 'set/images/a.png').touch()
    with pytest.raises(UserError, match=r'set/labels does not exist'):
        check_data(cfg, ['train'])
    (tmp_path / 'set/labels').mkdir()
    (tmp_path / 'set/labels/a.png').touch()
    check_data(cfg, ['train', 'val'])


def test_a_missing_list_of_files_is_named_and_help_has_a_default(tmp_path: Path) -> None:
    cfg = data_cfg(tmp_path, data_prefix={}, ann_file='splits/val.txt')
    cfg.pop('data_help')
    with pytest.raises(UserError, match=r'splits/val\.txt does not exist') as info:
        check_data(cfg, ['train'])
    assert 'train_dataloader.dataset.data_root' in str(info.value)
    (tmp_path / 'splits').mkdir()
    (tmp_path / 'splits/val.txt').touch()
    check_data(cfg, ['train'])


@pytest.mark.parametrize('wrapper', ['ConcatDataset', 'RepeatDataset', 'both'])
def test_data_within_wrappers_is_checked(tmp_path: Path, wrapper: str) -> None:
    (tmp_path / 'a').mkdir()
    (tmp_path / 'a' / '1.png').touch()
    sets = [{'data_root': str(tmp_path), 'data_prefix': {'img_path': name}} for name in 'ab']
    dataset = {
        'ConcatDataset': {'datasets': sets},
        'RepeatDataset': {'times': 2, 'dataset': sets[1]},
        'both': {'dataset': {'datasets': [sets[0], {'dataset': sets[1]}]}},
    }[wrapper]
    cfg = Config({'val_dataloader': {'dataset': dataset}})
    with pytest.raises(UserError, match=f'{tmp_path}/b does not exist'):
        check_data(cfg, ['val'])
    (tmp_path / 'a').rename(tmp_path / 'b')
    if wrapper != 'RepeatDataset':
        with pytest.raises(UserError, match=f'{tmp_path}/a does not exist'):
            check_data(cfg, ['val'])
    (tmp_path / 'a').symlink_to(tmp_path / 'b')
    check_data(cfg, ['val'])


def test_whatever_refuses_a_config_becomes_one_message(tmp_path: Path) -> None:
    path = tmp_path / 'mine.py'
    path.write_text(f"model = dict(type='NoSuchModel')\nwork_dir = {str(tmp_path)!r}\n")
    cfg = load_config(str(path))
    with pytest.raises(UserError, match=r'mine\.py cannot be built: .*NoSuchModel'):
        build_runner(cfg, train=True)


def test_wrong_strides_and_classes_are_named() -> None:
    from vit5_dense import SimplePyramid, ViT5

    model = torch.nn.Module()
    sizes = {'embed_dims': 32, 'depth': 1, 'num_heads': 2}
    model.backbone = ViT5(arch=sizes, patch_size=8, out_indices=(0,))
    model.neck = SimplePyramid(32)
    with pytest.raises(UserError, match='in_stride=8'):
        check_strides(model)
    model.neck = SimplePyramid(32, in_stride=8)
    check_strides(model)

    model.decode_head = torch.nn.Module()
    model.decode_head.num_classes = 150
    loader: Any = SimpleNamespace(dataset=SimpleNamespace(metainfo={'classes': ('a', 'b')}))
    runner: Any = SimpleNamespace(model=model)
    with pytest.raises(UserError, match=r'150.* 2 classes'):
        check_classes(runner, loader)
    model.decode_head.num_classes = 2
    check_classes(runner, loader)


@pytest.mark.parametrize('wrapped', [False, True], ids=['plain', 'wrapped'])
@pytest.mark.parametrize(
    ('crop', 'size', 'named'),
    [
        ((64, 32), (64, 64), ('(64, 32)', '(64, 64)')),
        (32, (64, 64), ('(32, 32)', '(64, 64)')),
        ((64, 32), [64, 32], ()),
        (64, (64, 64), ()),
        ((64, 64), None, ()),
    ],
)
def test_crops_of_another_size_than_the_batches_are_named(
    crop: Any, size: Any, named: tuple[str, ...], wrapped: bool
) -> None:
    dataset = {'pipeline': [{'type': 'LoadAnnotations'}, {'type': 'RandomCrop', 'crop_size': crop}]}
    dataset = {'type': 'RepeatDataset', 'dataset': dataset} if wrapped else dataset
    model = {'data_preprocessor': {'size': size}}
    cfg = Config({'model': model, 'train_dataloader': {'dataset': dataset}})
    if not named:
        check_sizes(cfg)
        return
    with pytest.raises(UserError) as info:
        check_sizes(cfg)
    assert all(part in str(info.value) for part in named)


@pytest.mark.parametrize('loop', [EpochBasedTrainLoop, IterBasedTrainLoop])
@pytest.mark.parametrize('sampler', [InfiniteSampler, DefaultSampler])
def test_an_epoch_without_end_is_refused(loop: type, sampler: type) -> None:
    loader = SimpleNamespace(sampler=sampler(range(3)))
    runner: Any = SimpleNamespace(train_dataloader=loader, train_loop=loop.__new__(loop))
    if (loop, sampler) == (EpochBasedTrainLoop, InfiniteSampler):
        with pytest.raises(UserError, match=r'never ends.*DefaultSampler.*IterBasedTrainLoop'):
            check_end(runner)
    else:
        check_end(runner)


def test_only_a_training_elsewhere_leaves_a_copy_of_the_config(tmp_path: Path) -> None:
    (tmp_path / 'here').mkdir()
    path = tmp_path / 'here' / 'mine.py'
    path.write_text('model = dict()\n')
    copies = {}
    for folder in ('here', '.', 'link', 'new'):
        if folder == 'link':
            (tmp_path / 'link').mkdir()
            (tmp_path / 'link' / 'mine.py').symlink_to(path)
        cfg = load_config(str(path))
        cfg.work_dir = str(tmp_path / folder)
        copies[folder] = [runner_class(cfg, train) is Runner for train in (True, False)]
    written, left = [True, False], [False, False]
    assert copies == {'here': left, '.': written, 'link': left, 'new': written}
