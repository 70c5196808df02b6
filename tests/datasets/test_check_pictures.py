from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_data import annotation, config, det_dataset, det_set, save_picture, seg_dataset, seg_set

from vit5_dense.datasets.check import check
from vit5_dense.datasets.check_pictures import drawn, write_classes, write_samples
from vit5_dense.pictures import overlay, read_picture


def test_samples_show_labels_over_pictures_from_all_over_the_set(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train', 9)
    found = check(config(train=seg_dataset(tmp_path, 'train')))
    pictures = dict(drawn(found.parts['train'], 3))
    assert list(pictures) == ['train: 0', 'train: 4', 'train: 8']
    labels = np.repeat(np.arange(3), 16).reshape(6, 8)
    palette = found.parts['train'].plans[0].palette
    wanted = overlay(read_picture(tmp_path / 'img' / 'train' / '4.png'), labels, palette)
    np.testing.assert_array_equal(pictures['train: 4'], wanted)


def test_broken_files_are_grey_and_named(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train', 3)
    (tmp_path / 'img' / 'train' / '0.png').write_bytes(b'no picture')
    save_picture(tmp_path / 'ann' / 'train' / '1.png')
    found = check(config(train=seg_dataset(tmp_path, 'train')))
    captions = [caption for caption, _ in drawn(found.parts['train'], 12)]
    assert captions[0] == 'train: 0\nnot drawn: PictureError'
    assert captions[1].startswith('train: 1\nnot drawn: ')
    assert captions[2:] == ['train: 2']
    assert write_samples(found, tmp_path / 'samples.png')


def test_both_files_are_pictures(tmp_path: Path) -> None:
    for split in ('train', 'val'):
        seg_set(tmp_path, split, 20)
    cfg = config(**{split: seg_dataset(tmp_path, split) for split in ('train', 'val')})
    found = check(cfg)
    for write in (write_classes, write_samples):
        assert write(found, tmp_path / 'a.png')
        with Image.open(tmp_path / 'a.png') as picture:
            assert min(picture.size) > 100


def test_nothing_is_written_where_nothing_is_known(tmp_path: Path) -> None:
    seg_set(tmp_path, 'train')
    found = check(config(train=seg_dataset(tmp_path, 'train', type='BaseCDDataset')))
    assert not write_classes(found, tmp_path / 'a.png')
    assert not write_samples(found, tmp_path / 'a.png')
    assert not (tmp_path / 'a.png').exists()


def test_objects_are_drawn_with_or_without_masks(tmp_path: Path) -> None:
    pytest.importorskip('mmcv._ext')
    import vit5_dense.detection  # noqa: F401  registers ViT5CocoDataset

    for segmentation in ([[1, 1, 5, 1, 5, 5, 1, 5]], None):
        entries = [annotation(1, 1, segmentation=segmentation), annotation(2, 1, category_id=9)]
        names = [{'id': i, 'name': name} for i, name in ((7, 'dog'), (3, 'cat'), (9, 'emu'))]
        det_set(tmp_path, 'train', entries, categories=names)
        found = check(config('mmdet', train=det_dataset(tmp_path, 'train')))
        (_, first), (_, second) = drawn(found.parts['train'], 12)
        assert (first != read_picture(tmp_path / 'train' / '1.png')).any()
        np.testing.assert_array_equal(second, read_picture(tmp_path / 'train' / '2.png'))
