import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_data import CLASSES, SEG_STEPS, config, good_mask, save_mask, seg_dataset, seg_set

from vit5_dense.datasets import check as module
from vit5_dense.datasets.check import Report, check, quick_check
from vit5_dense.errors import UserError


def kinds(found: Report) -> list[str]:
    return [fault.kind for fault in found.faults]


def test_all_splits_of_the_config_are_checked_unless_some_are_named(tmp_path: Path) -> None:
    for seed, split in enumerate(('train', 'val', 'test')):
        seg_set(tmp_path, split, seed=10 * seed)
    cfg = config(**{split: seg_dataset(tmp_path, split) for split in ('test', 'train', 'val')})
    found = check(cfg)
    assert list(found.parts) == ['train', 'val', 'test']
    assert not found.faults + found.notes
    assert list(check(cfg, ('val', 'train')).parts) == ['train', 'val']
    cfg.test_dataloader = None
    assert list(check(cfg).parts) == ['train', 'val']
    with pytest.raises(UserError, match='no test_dataloader'):
        check(cfg, ('test',))
    assert list(quick_check(cfg, ('train', 'test')).parts) == ['train']


def test_a_test_split_that_is_the_val_split_is_looked_at_once(tmp_path: Path) -> None:
    seg_set(tmp_path, 'val')
    val = seg_dataset(tmp_path, 'val')
    found = check(config(val=val, test={**val, 'pipeline': SEG_STEPS[:1]}))
    assert list(found.parts) == ['val']
    assert found.notes == ['test is the same data as val']
    assert list(check(config(val=val, test={**val, 'img_suffix': 'g'})).parts) == ['val', 'test']


def test_data_sets_within_wrappers_are_added_up(tmp_path: Path) -> None:
    for split in ('a', 'b'):
        seg_set(tmp_path, split, 2)
    save_mask(tmp_path / 'ann' / 'b' / '1.png', np.full((6, 8), 9, np.uint8))
    both = {
        'type': 'RepeatDataset',
        'times': 2,
        'dataset': {
            'type': 'ConcatDataset',
            'datasets': [seg_dataset(tmp_path, split) for split in ('a', 'b')],
        },
    }
    found = check(config(train=both))
    assert found.parts['train'].pictures == 4
    assert found.parts['train'].classes == dict.fromkeys(CLASSES, 3 * 16)
    assert [fault.file for fault in found.faults] == [str(tmp_path / 'ann' / 'b' / '1.png')]


@pytest.mark.parametrize(
    ('scope', 'changes', 'words'),
    [
        ('mmseg', {'type': 'BaseCDDataset'}, 'BaseCDDataset is a data set of an unknown kind'),
        ('mmseg', {'type': 'MyDataset'}, 'MyDataset is a data set of an unknown kind'),
        ('mmpose', {}, "default_scope 'mmpose' is unknown"),
        (
            'mmseg',
            {'pipeline': [{'type': 'LoadSingleRSImageFromFile'}]},
            'BaseSegDataset reads its files by LoadSingleRSImageFromFile',
        ),
        (
            'mmseg',
            {'pipeline': [{'type': 'LoadImageFromFile', 'imdecode_backend': 'tifffile'}]},
            "imdecode_backend='tifffile'",
        ),
    ],
)
def test_what_cannot_be_checked_is_a_warning_in_one_line(
    tmp_path: Path, scope: str, changes: dict[str, Any], words: str
) -> None:
    seg_set(tmp_path, 'train')
    found = check(config(scope, train=seg_dataset(tmp_path, 'train', **changes)))
    (fault,) = found.faults
    assert fault.level == 'warning'
    assert words in fault.value
    (line,) = found.lines('warning')
    assert '\n' not in line


def test_settings_that_a_data_set_refuses_are_named(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train')
    with pytest.raises(UserError, match='suffixx'):
        check(config(train=seg_dataset(tmp_path, 'train', suffixx='.png')))


def test_classes_that_never_occur_are_one_warning_for_each_split(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train', 2)
    names = (*CLASSES, 'sea', 'ship')
    cfg = config(train=seg_dataset(tmp_path, 'train', metainfo={'classes': names}))
    (fault,) = check(cfg).faults
    assert (fault.level, fault.kind) == ('warning', 'class that never occurs')
    assert fault.value == "2 of 5 classes never occur: 'sea', 'ship'"
    assert not quick_check(cfg, ('train',)).faults, 'not all pictures were opened'


@pytest.mark.parametrize('quick', [False, True])
def test_heads_of_another_number_of_classes_are_errors_of_each_split(
    tmp_path: Path, quick: bool
) -> None:
    """Named as in the model that is built; heads that have none are left to their framework."""
    for seed, split in enumerate(('train', 'val')):
        seg_set(tmp_path, split, seed=10 * seed)
    data = {split: seg_dataset(tmp_path, split) for split in ('train', 'val')}
    model = {
        'decode_head': {'num_classes': 5},
        'auxiliary_head': [{'num_classes': 3}, {'num_classes': 150}, {}],
        'roi_head': {'bbox_head': {'num_classes': 80}, 'mask_head': {'num_classes': 3}},
        'head': {'num_classes': 7},
    }
    found = check(config(model=model, **data), quick=quick).faults
    assert {(fault.level, fault.kind) for fault in found} == {('error', 'number of classes')}
    names = ('decode_head', 'auxiliary_head.1', 'roi_head.bbox_head')
    assert [(fault.split, fault.value.split('.num_classes is ')[0]) for fault in found] == [
        (split, name) for split in data for name in names
    ]
    assert found[0].value == (
        'decode_head.num_classes is 5, but the data set has 3 classes: set '
        'model.decode_head.num_classes=3'
    )
    both = {'type': 'ConcatDataset', 'datasets': [data['train'], data['val']]}
    found = check(config(model={'decode_head': {'num_classes': 5}}, train=both)).faults
    assert len(found) == 1


def test_pictures_of_train_that_are_in_another_split_are_warnings(tmp_path: Path) -> None:
    for seed, split in enumerate(('train', 'val', 'test')):
        seg_set(tmp_path, split, 2, seed=10 * seed)
    picture = tmp_path / 'img' / 'train' / '1.png'
    (tmp_path / 'img' / 'val' / 'copy.png').write_bytes(picture.read_bytes())
    save_mask(tmp_path / 'ann' / 'val' / 'copy.png', good_mask())
    cfg = config(**{split: seg_dataset(tmp_path, split) for split in ('train', 'val', 'test')})
    (fault,) = check(cfg).faults
    assert (fault.level, fault.kind) == ('warning', 'picture that is in train and val')
    assert fault.file == str(tmp_path / 'img' / 'val' / 'copy.png')
    assert str(picture) in fault.value
    assert not quick_check(cfg, ('train', 'val')).faults
    cfg.val_dataloader = cfg.train_dataloader
    assert kinds(check(cfg, ('train', 'val'))) == ['picture that is in train and val'] * 2


def test_a_quick_check_compares_all_names_and_opens_the_same_pictures_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seg_set(tmp_path, 'train', 20)
    for i in range(20):  # every picture tells whether it was opened
        save_mask(tmp_path / 'ann' / 'train' / f'{i}.png', np.full((6, 8), 9, np.uint8))
    (tmp_path / 'ann' / 'train' / '13.png').unlink()
    cfg = config(train=seg_dataset(tmp_path, 'train'))
    assert len(quick_check(cfg, ('train',)).faults) == 20
    monkeypatch.setattr(module, 'QUICK_PICTURES', 5)
    found = quick_check(cfg, ('train',))
    assert kinds(found) == ['picture without a mask'] + ['label out of range'] * 5
    assert found.faults == quick_check(cfg, ('train',)).faults
    assert found.parts['train'].pictures == 20


def test_a_quick_check_ends_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seg_set(tmp_path, 'train', 30)

    def slow(pair: Any, rule: Any) -> Any:
        time.sleep(0.05)
        return original(pair, rule)

    from vit5_dense.datasets import check_pairs

    original = check_pairs.look_at_pair
    monkeypatch.setattr(check_pairs, 'look_at_pair', slow)
    monkeypatch.setattr(module, 'QUICK_SECONDS', 0.06)
    found = quick_check(config(train=seg_dataset(tmp_path, 'train')), ('train',))
    assert 1 <= len(found.parts['train'].sizes) < 30


def test_the_report_is_json_and_groups_faults_by_kind_and_split(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train', 5)
    for i in range(4):
        save_mask(tmp_path / 'ann' / 'train' / f'{i}.png', np.full((6, 8), 7 + i, np.uint8))
    save_mask(tmp_path / 'ann' / 'train' / '4.png', np.full((5, 8), 0, np.uint8))
    found = check(config(train=seg_dataset(tmp_path, 'train')))
    content = json.loads(json.dumps(found.as_json()))
    assert (content['errors'], content['warnings'], content['quick']) == (5, 1, False)
    assert content['splits']['train'] == {
        'pictures': 5,
        'readable': 5,
        'sizes': {key: [8, 6] for key in ('min', 'median', 'max')},
        'unit': 'pixels',
        'classes': {'sky': 40, 'road': 0, 'tree': 0},
        'ignored': {},
    }
    assert content['faults'][0] == {
        'level': 'error',
        'kind': 'label out of range',
        'split': 'train',
        'file': str(tmp_path / 'ann' / 'train' / '0.png'),
        'value': '7 (48 pixels); there are 3 classes, 0 to 2, and 255 is ignored',
    }
    first, second = found.lines('error')
    assert first.startswith('train: label out of range (4): ')
    assert first.endswith('...')
    assert first.count('.png') == 3
    assert second.startswith('train: size mismatch (1): ')
    assert second.count('.png') == 1
