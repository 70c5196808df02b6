import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip('mmcv._ext')

from vit5_dense.datasets.coco_annotations import AnnotationError
from vit5_dense.detection import ViT5CocoDataset

CLASSES = ('cat', 'dog')
BOXES = {1: [2, 3, 20, 10], 2: [5, 6, 12, 24]}  # by category id


def write(folder: Path, names: dict[int, str], **changes: Any) -> Path:
    """Two pictures: the first has one object of either category, the second has none."""
    for number in (1, 2):
        Image.fromarray(np.zeros((40, 50, 3), np.uint8)).save(folder / f'{number}.png')
    annotations = [
        {
            'id': number,
            'image_id': 1,
            'category_id': number,
            'bbox': box,
            'area': box[2] * box[3],
            'segmentation': [[2, 3, 22, 3, 22, 13]],
            'iscrowd': 0,
            **changes,
        }
        for number, box in BOXES.items()
    ]
    content = {
        'images': [{'id': i, 'file_name': f'{i}.png', 'height': 40, 'width': 50} for i in (1, 2)],
        'annotations': annotations,
        'categories': [{'id': number, 'name': name} for number, name in names.items()],
    }
    path = folder / 'file.json'
    path.write_text(json.dumps(content))
    return path


def load(path: Path, classes: Any = CLASSES, masks: bool = True, **options: Any) -> ViT5CocoDataset:
    pipeline = [{'type': 'mmdet.LoadAnnotations', 'with_mask': masks}]
    return ViT5CocoDataset(
        ann_file=str(path),
        data_prefix={'img': str(path.parent)},
        metainfo={'classes': classes},
        pipeline=pipeline,
        **options,
    )


@pytest.mark.parametrize('names', [{1: 'cat', 2: 'dog'}, {2: 'dog', 1: 'cat'}], ids=['a', 'b'])
@pytest.mark.parametrize('classes', [('cat', 'dog'), ('dog', 'cat'), ('dog',)])
def test_labels_are_those_of_the_names(
    tmp_path: Path, names: dict[int, str], classes: tuple[str, ...]
) -> None:
    data = load(write(tmp_path, names), classes)
    found = {tuple(item['bbox']): item['bbox_label'] for item in data.get_data_info(0)['instances']}
    wanted = {
        (x, y, x + w, y + h): classes.index(names[number])
        for number, (x, y, w, h) in BOXES.items()
        if names[number] in classes
    }
    assert found == wanted
    ids = {name: number for number, name in names.items()}
    assert data.metainfo['category_ids'] == tuple(ids[name] for name in classes)
    assert data.metainfo['ann_file'] == str(tmp_path / 'file.json')


def test_pictures_without_objects_stay_unless_they_are_filtered(tmp_path: Path) -> None:
    path = write(tmp_path, {1: 'cat', 2: 'dog'})
    assert len(load(path)) == 2
    assert load(path).get_data_info(1)['instances'] == []
    assert len(load(path, filter_cfg={'filter_empty_gt': True})) == 1


@pytest.mark.parametrize(
    ('classes', 'changes', 'message'),
    [
        (('cat', 'dgo'), {}, "1 of 2 classes found, not 'dgo'"),
        ('cat', {}, 'one word'),
        (CLASSES, {'id': 0}, 'have the id 0'),
        (CLASSES, {'segmentation': []}, '2 of 2 annotations have no segmentation'),
        (CLASSES, {'iscrowd': 1}, 'crowds'),
    ],
)
def test_a_mistake_stops_before_training(
    tmp_path: Path, classes: Any, changes: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, {1: 'cat', 2: 'dog'}, **changes)
    with pytest.raises(AnnotationError, match=message) as info:
        load(path, classes)
    assert len(str(info.value).splitlines()) == 1
    assert classes == 'cat' or 'file.json' in str(info.value)


def test_what_only_training_or_masks_need_is_not_asked_elsewhere(tmp_path: Path) -> None:
    names = {1: 'cat', 2: 'dog'}
    assert len(load(write(tmp_path, names, iscrowd=1), test_mode=True)) == 2
    assert len(load(write(tmp_path, names, segmentation=[]), masks=False)) == 2
