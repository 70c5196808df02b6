import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip('mmcv._ext')

from small_data import annotation, config, det_dataset, det_set, save_picture

import vit5_dense.detection  # noqa: F401  registers ViT5CocoDataset
from vit5_dense.datasets import check_objects
from vit5_dense.datasets.check import check, quick_check
from vit5_dense.datasets.check_objects import mask_of
from vit5_dense.datasets.check_report import Report


def report(root: Path, split: str = 'train', **options: Any) -> Report:
    return check(config('mmdet', **{split: det_dataset(root, split, **options)}))


def faults(found: Report) -> list[tuple[str, str, str]]:
    """Level, kind and file name of all faults."""
    return [(f.level, f.kind, Path(f.file).name) for f in found.faults]


def test_a_good_set_has_its_figures_and_no_fault(tmp_path: Path) -> None:
    """The order of the file's categories does not matter to ViT5CocoDataset."""
    entries = [annotation(), annotation(2, 2), annotation(3, 2, category_id=3)]
    det_set(tmp_path, 'train', [*entries, annotation(4, iscrowd=1)])
    found = report(tmp_path)
    part = found.parts['train']
    assert not found.faults
    assert part.pictures == 2
    assert part.sizes == [(8, 6)] * 2
    assert part.classes == {'cat': 1, 'dog': 2}
    assert part.ignored == {'crowds': 1}


def test_names_that_the_file_lacks_are_an_error(tmp_path: Path) -> None:
    det_set(tmp_path, 'train')
    found = report(tmp_path, metainfo={'classes': ('cat', 'dgo')})
    assert faults(found) == [('error', 'class names', 'train.json')]
    assert found.faults[0].value.startswith("1 of 2 classes found, not 'dgo'")
    assert len(found.parts['train'].sizes) == 2, 'pictures are opened nevertheless'
    found = report(tmp_path, metainfo={'CLASSES': ('cat', 'dog')})
    assert '1 of 80 classes found' in found.faults[0].value or '2 of 80' in found.faults[0].value
    assert 'one word' in report(tmp_path, metainfo={'classes': 'cat'}).faults[0].value


def test_another_order_of_names_is_an_error_for_mmdets_own_data_set(tmp_path: Path) -> None:
    det_set(tmp_path, 'train')
    found = report(tmp_path, type='CocoDataset')
    assert faults(found) == [('error', 'order of classes', 'train.json')]
    assert 'ViT5CocoDataset' in found.faults[0].value
    assert not report(tmp_path, type='CocoDataset', metainfo={'classes': ('dog', 'cat')}).faults


@pytest.mark.parametrize(
    ('entries', 'kind', 'words'),
    [
        ([annotation(0)], 'annotation file', 'number annotations from 1'),
        ([annotation(), annotation()], 'annotation file', 'several annotations have the id 1'),
        ([annotation(bbox=[1, 1, -4, 4])], 'annotation file', 'bbox [1, 1, -4, 4]'),
        ([annotation(segmentation=[])], 'objects without a mask', '1 of 1 annotations have no'),
        ([annotation(segmentation=[['a'] * 8])], 'objects without a mask', "['a', 'a', "),
        (
            [annotation(segmentation={'size': [6, 8], 'counts': [10, 20]})],
            'objects without a mask',
            'run lengths of 30 pixels, the picture has 48',
        ),
        ([annotation(iscrowd=1)], 'nothing to learn', 'all 1 objects of the classes are crowds'),
    ],
)
def test_what_the_data_set_refuses_is_an_error(
    tmp_path: Path, entries: list[dict[str, Any]], kind: str, words: str
) -> None:
    det_set(tmp_path, 'train', entries)
    fault = report(tmp_path).faults[0]
    assert (fault.level, fault.kind) == ('error', kind)
    assert fault.file == str(tmp_path / 'train.json')
    assert words in fault.value
    assert fault.file not in fault.value


def test_what_only_training_or_masks_need_is_not_asked_elsewhere(tmp_path: Path) -> None:
    det_set(tmp_path, 'val', [annotation(iscrowd=1), annotation(2, 2, category_id=3)])
    assert [f.kind for f in report(tmp_path, 'val', test_mode=True).faults] == [
        'class that never occurs'
    ]
    det_set(tmp_path, 'train', [annotation(segmentation=[]), annotation(2, 2, category_id=3)])
    steps = [{'type': 'LoadImageFromFile'}, {'type': 'LoadAnnotations', 'with_bbox': True}]
    assert not report(tmp_path, pipeline=steps).faults


def test_category_id_0_is_a_warning(tmp_path: Path) -> None:
    names = [{'id': 0, 'name': 'cat'}, {'id': 7, 'name': 'dog'}]
    det_set(tmp_path, 'train', [annotation(), annotation(2, category_id=0)], categories=names)
    assert faults(report(tmp_path)) == [('warning', 'category id 0', 'train.json')]


def test_files_of_pictures_are_missing_broken_or_of_another_size(tmp_path: Path) -> None:
    sizes = {1: (8, 6), 2: (6, 8), 3: (9, 9), 4: (8, 6), 5: (8, 6)}
    images = [
        {'id': i, 'file_name': f'{i}.png', 'width': w, 'height': h} for i, (w, h) in sizes.items()
    ]
    det_set(tmp_path, 'train', images=images)
    save_picture(tmp_path / 'train' / '3.png')
    (tmp_path / 'train' / '4.png').write_bytes(b'no picture')
    found = report(tmp_path)
    assert faults(found) == [
        ('error', 'missing picture', '5.png'),
        ('error', 'size mismatch', '2.png'),
        ('error', 'size mismatch', '3.png'),
        ('error', 'unreadable picture', '4.png'),
    ]
    assert 'swapped' in found.faults[1].value
    assert found.faults[2].value == '9x9 is recorded, the picture is 8x6'
    assert found.parts['train'].pictures == 5


def test_the_recorded_size_is_that_of_the_turned_picture(tmp_path: Path) -> None:
    det_set(tmp_path, 'train')
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (6, 8)).save(tmp_path / 'train' / '1.png', exif=exif)
    assert not report(tmp_path).faults
    Image.new('RGB', (8, 6)).save(tmp_path / 'train' / '1.png', exif=exif)
    assert 'EXIF' in report(tmp_path).faults[0].value


def test_a_large_annotation_file_is_left_out_in_a_quick_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    det_set(tmp_path, 'train', [annotation(0)])
    (tmp_path / 'train' / '1.png').write_bytes(b'no picture')
    cfg = config('mmdet', train=det_dataset(tmp_path, 'train'))
    assert [f.kind for f in quick_check(cfg, ('train',)).faults] == ['annotation file']
    monkeypatch.setattr(check_objects, 'QUICK_BYTES', 10)
    found = quick_check(cfg, ('train',))
    assert faults(found) == [('error', 'unreadable picture', '1.png')]
    assert 'is read when the data set is built' in found.notes[0]
    assert faults(check(cfg))[0][1] == 'annotation file', 'only where time is short'


def test_masks_of_all_forms_are_drawn(tmp_path: Path) -> None:
    from pycocotools.mask import encode

    square = np.zeros((6, 8), bool)
    square[1:5, 1:5] = True
    code = encode(np.asfortranarray(square, dtype=np.uint8))
    compressed = {'size': [6, 8], 'counts': code['counts'].decode()}
    flat = square.ravel(order='F')
    runs = np.diff([0, *(np.flatnonzero(flat[1:] != flat[:-1]) + 1), flat.size]).tolist()
    forms = ([[1, 1, 5, 1, 5, 5, 1, 5]], {'size': [6, 8], 'counts': runs}, compressed)
    for form in forms:
        np.testing.assert_array_equal(mask_of(form, 6, 8), square)


@pytest.mark.parametrize(
    ('name', 'objects', 'crowds'), [('train2017', 2081, 25), ('val2017', 1244, 17)]
)
def test_real_pictures_have_the_known_figures(
    shared: Path, name: str, objects: int, crowds: int
) -> None:
    root = shared / 'data' / 'coco_mini_s320'
    if not root.is_dir():
        pytest.skip(f'no {root}')
    path = root / 'annotations' / f'instances_{name}.json'
    content = json.loads(path.read_text())
    classes = tuple(one['name'] for one in content['categories'])
    options = {
        'ann_file': str(path),
        'data_prefix': {'img': name},
        'metainfo': {'classes': classes},
    }
    found = report(root, 'val', test_mode=True, **options)
    part = found.parts['val']
    assert part.pictures == len(part.sizes) == len(content['images'])
    assert part.ignored['crowds'] <= crowds
    assert part.classes.total() + part.ignored.total() == objects
    assert not found.of_level('error')
