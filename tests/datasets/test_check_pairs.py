from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_data import config, good_mask, save_mask, save_picture, seg_dataset, seg_set

from vit5_dense.datasets.check import check
from vit5_dense.datasets.check_report import Report


def report(root: Path, **options: Any) -> Report:
    return check(config(train=seg_dataset(root, 'train', **options)))


def faults(found: Report, but: str = '') -> list[tuple[str, str, str]]:
    """Level, kind and file name of all faults."""
    return [(f.level, f.kind, Path(f.file).name) for f in found.faults if f.kind != but]


def test_a_set_has_its_figures(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train')
    save_picture(tmp_path / 'img' / 'train' / 'deep' / 'x.png', 9, 30, 20)
    save_mask(tmp_path / 'ann' / 'train' / 'deep' / 'x.png', np.full((20, 30), 255, np.uint8))
    found = report(tmp_path)
    part = found.parts['train']
    assert [fault.file for fault in found.faults] == [
        str(tmp_path / 'ann' / 'train' / 'deep' / 'x.png')
    ], 'the one that is ignored everywhere'
    assert part.pictures == len(part.sizes) == 4
    assert part.size_range() == {'min': (8, 6), 'median': (8, 6), 'max': (30, 20)}
    assert part.classes == {'sky': 48, 'road': 48, 'tree': 48}
    assert part.ignored == {'ignored pixels': 600}


def test_missing_halves_of_pairs_are_errors(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train', 4)
    (tmp_path / 'img' / 'train' / '1.png').unlink()
    (tmp_path / 'ann' / 'train' / '2.png').unlink()
    found = report(tmp_path)
    assert faults(found) == [
        ('error', 'picture without a mask', '2.png'),
        ('error', 'mask without a picture', '1.png'),
    ]
    assert str(tmp_path / 'ann' / 'train' / '2.png') in found.faults[0].value
    assert str(tmp_path / 'img' / 'train') in found.faults[1].value


def test_where_a_file_lists_the_pictures_others_may_lie_beside_them(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train', 3)
    (tmp_path / 'list.txt').write_text('train/0\ntrain/2\ntrain/7\n')
    (tmp_path / 'ann' / 'train' / '2.png').unlink()
    prefix = {'img_path': 'img', 'seg_map_path': 'ann'}
    found = report(tmp_path, ann_file='list.txt', data_prefix=prefix)
    assert faults(found) == [
        ('error', 'picture without a mask', '2.png'),
        ('error', 'missing picture', '7.png'),
    ]
    assert found.parts['train'].pictures == 3


def test_suffixes_make_the_pairs(tmp_path: Path) -> None:
    """As in mmseg, the stem of a picture is followed by the suffix of the label files."""
    save_picture(tmp_path / 'img' / 'train' / 'a_photo.jpg')
    save_mask(tmp_path / 'ann' / 'train' / 'a_ids.png', good_mask())
    save_mask(tmp_path / 'ann' / 'train' / 'a_color.png', good_mask())
    options = {'img_suffix': '_photo.jpg', 'seg_map_suffix': '_ids.png'}
    assert not report(tmp_path, **options).faults


def test_pictures_that_the_suffix_passes_over_are_told(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train')
    save_picture(tmp_path / 'img' / 'train' / 'b.JPG')
    assert faults(report(tmp_path)) == [('warning', 'picture of another suffix', 'b.JPG')]
    found = report(tmp_path, img_suffix='.tif')
    assert ('error', 'no pictures', 'train') in faults(found)


def test_classes_must_be_a_list_of_names(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train')
    for metainfo in ({'CLASSES': ('a', 'b')}, {'classes': 'tree'}, {}):
        assert faults(report(tmp_path, metainfo=metainfo)) == [('error', 'class names', 'train')]


def test_masks_of_another_palette_are_one_warning(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train', 4)
    for i in range(3):
        mask = Image.fromarray(good_mask(), 'P')
        mask.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0])
        mask.save(tmp_path / 'ann' / 'train' / f'{i}.png')
    found = report(tmp_path)
    assert faults(found) == [('warning', 'palette masks', '0.png')]
    assert 'palette indices are taken as labels: 3 files' in found.faults[0].value
    own = {'classes': ('sky', 'road', 'tree'), 'palette': [[9, 9, 9], [200, 0, 0], [0, 200, 0]]}
    assert not report(tmp_path, metainfo=own).faults
    steps = [{'type': 'LoadAnnotations', 'imdecode_backend': 'cv2'}]
    assert [f.kind for f in report(tmp_path, pipeline=steps).faults] == ['mask of colours'] * 3


def test_a_data_set_without_labels_is_only_opened(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train')
    (tmp_path / 'img' / 'train' / '1.png').write_bytes(b'no picture')
    found = report(tmp_path, data_prefix={'img_path': 'img/train'})
    assert faults(found) == [('error', 'unreadable picture', '1.png')]
    assert not found.parts['train'].classes
    assert 'no labels' in found.notes[0]


def test_broken_pictures_are_errors_and_their_labels_are_still_read(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train', 2)
    path = save_picture(tmp_path / 'img' / 'train' / '0.png', 0, 99, 99)
    path.write_bytes(path.read_bytes()[:5000])
    save_mask(tmp_path / 'ann' / 'train' / '0.png', np.full((99, 99), 7, np.uint8))
    found = report(tmp_path)
    assert faults(found) == [
        ('error', 'unreadable picture', '0.png'),
        ('error', 'label out of range', '0.png'),
    ]
    assert 'truncated' in found.faults[0].value
    assert found.parts['train'].sizes == [(8, 6)]


def test_a_turned_photo_has_the_size_that_it_is_loaded_with(tmp_path: Path) -> None:
    """mmcv turns pictures by their EXIF orientation, label maps never."""
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / 'img' / 'train').mkdir(parents=True)
    Image.new('RGB', (8, 6)).save(tmp_path / 'img' / 'train' / 'a.jpg', exif=exif)
    save_mask(tmp_path / 'ann' / 'train' / 'a.png', good_mask())
    found = report(tmp_path, img_suffix='.jpg')
    assert faults(found) == [('error', 'size mismatch', 'a.png')]
    assert 'the mask is 8x6, the picture 6x8' in found.faults[0].value


def test_ade20k_keeps_its_own_suffixes_classes_and_zero_label(tmp_path: Path) -> None:
    save_picture(tmp_path / 'img' / 'train' / 'a.jpg')
    mask = good_mask()
    mask[0, :3] = (150, 151, 152)
    save_mask(tmp_path / 'ann' / 'train' / 'a.png', mask)
    options = seg_dataset(tmp_path, 'train', type='ADE20KDataset')
    for key in ('img_suffix', 'metainfo'):
        del options[key]
    found = check(config(train=options))
    out, rare = found.faults
    assert '151 is class 150' in out.value
    assert '152 is class 151' in out.value
    assert '150 is' not in out.value
    part = found.parts['train']
    assert part.ignored == {'ignored pixels': 13}
    assert {name: n for name, n in part.classes.items() if n} == {
        'wall': 16,
        'building': 16,
        'flag': 1,
    }
    assert rare.kind == 'class that never occurs'
    assert rare.value.startswith('147 of 150 classes never occur')


@pytest.mark.parametrize(
    ('model', 'options'),
    [
        ({'decode_head': {'ignore_index': 9}}, {}),
        ({'decode_head': [{'ignore_index': 9}, {}]}, {}),
        ({}, {'ignore_index': 9}),
    ],
)
def test_labels_that_a_head_or_the_data_set_ignores_are_known(
    tmp_path: Path, model: Any, options: Any
) -> None:
    seg_set(tmp_path, 'train')
    mask = good_mask()
    mask[0, 0] = 9
    save_mask(tmp_path / 'ann' / 'train' / '0.png', mask)
    assert faults(report(tmp_path)) == [('error', 'label out of range', '0.png')]
    found = check(config(model=model, train=seg_dataset(tmp_path, 'train', **options)))
    assert not found.faults
    assert found.parts['train'].ignored == {'ignored pixels': 1}


def test_files_are_paired_as_mmseg_pairs_them(tmp_path: Path) -> None:
    """Hidden files, folders in folders, links, and pictures and label maps in one folder."""
    from mmseg.datasets import BaseSegDataset

    root = tmp_path / 'all'
    for name in ('b', 'a', 'deep/c', 'deep/er/a', '.hidden', '.git/d', 'a_mask'):
        save_picture(root / f'{name}.jpg')
        save_mask(root / f'{name}_mask.png', good_mask())
    (root / 'link.jpg').symlink_to(root / 'a.jpg')
    (root / 'link_mask.png').symlink_to(root / 'a_mask.png')
    (root / 'broken.jpg').symlink_to(root / 'nothing.jpg')
    options = {
        'data_prefix': {'img_path': 'all', 'seg_map_path': 'all'},
        'img_suffix': '.jpg',
        'seg_map_suffix': '_mask.png',
    }
    theirs = seg_dataset(tmp_path, 'all', **options, lazy_init=True)
    del theirs['type'], theirs['pipeline']
    entries = BaseSegDataset(**theirs).load_data_list()
    found = report(tmp_path, **options)
    ours = [pair for plan in found.parts['train'].plans for pair in plan.jobs]
    assert [tuple(pair) for pair in ours] == [
        (entry['img_path'], entry['seg_map_path']) for entry in entries
    ]
    assert len(ours) == 7
    assert not found.faults


def test_label_maps_in_a_folder_within_that_of_the_pictures_are_no_pictures(
    tmp_path: Path,
) -> None:
    save_picture(tmp_path / 'a.jpg')
    save_mask(tmp_path / 'masks' / 'a.png', good_mask())
    prefix = {'img_path': '', 'seg_map_path': 'masks'}
    assert not report(tmp_path, data_prefix=prefix, img_suffix='.jpg').faults
