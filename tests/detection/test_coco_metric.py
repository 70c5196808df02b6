"""Scores of results made by hand, against pycocotools itself."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip('mmcv._ext')

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from vit5_dense.detection import ViT5CocoMetric
from vit5_dense.errors import UserError
from vit5_dense.instances import coco_results, from_mmdet

CLASSES = ('cat', 'dog', 'bird')
IDS = (7, 3, 90)  # not in the order of the names, with gaps
SIDE = 120
Found = list[tuple[tuple[int, int, int, int], int, float]]  # box, label, score


def mask_of(box: tuple[float, ...]) -> np.ndarray:
    left, top, right, bottom = (round(x) for x in box)
    mask = np.zeros((SIDE, SIDE), bool)
    mask[top:bottom, left:right] = True
    return mask


def annotation(number: int, image: int, box: tuple[int, ...], label: int, **more: Any) -> Any:
    left, top, right, bottom = box
    outline = [left, top, right, top, right, bottom, left, bottom]
    return {
        'id': number,
        'image_id': image,
        'category_id': IDS[label],
        'bbox': [left, top, right - left, bottom - top],
        'area': (right - left) * (bottom - top),
        'segmentation': [outline],
        'iscrowd': 0,
        **more,
    }


def pictures(kind: str) -> tuple[list[Any], list[Found]]:
    """Annotations of ten pictures of up to three objects, and what was found in each."""
    random = np.random.default_rng(0)
    annotations: list[Any] = []
    found: list[Found] = []
    for image in range(1, 11):
        found.append([])
        for label in range(image % 4):
            left, top = (int(x) for x in random.integers(0, 60, 2))
            width, height = (int(x) for x in random.integers(6, 58, 2))
            box = (left, top, left + width, top + height)
            annotations.append(annotation(len(annotations) + 1, image, box, label))
            step = {'perfect': 0, 'shifted': int(random.integers(0, 9))}.get(kind, 0)
            guess = (left + step, top, left + width + step, top + height)
            if kind != 'empty':
                found[-1].append((guess, label, float(random.uniform(0.05, 1))))
            if kind == 'shifted':
                wrong = (label + 1) % 3
                found[-1].append((box, wrong, float(random.uniform(0.05, 1))))
    if kind == 'shifted':
        crowd = {'size': [SIDE, SIDE], 'counts': [0, SIDE * 40, SIDE * 80]}
        number = len(annotations) + 1
        annotations.append(annotation(number, 4, (0, 0, 40, 120), 1, iscrowd=1, segmentation=crowd))
        found[3] += [((0, 0, 30, 60), 1, 0.9), ((2, 50, 20, 119), 1, 0.8)]
    return annotations, found


def write(folder: Path, annotations: list[Any]) -> Path:
    content = {
        'images': [
            {'id': i, 'file_name': f'{i}.png', 'height': SIDE, 'width': SIDE} for i in range(1, 11)
        ],
        'annotations': annotations,
        'categories': [
            {'id': number, 'name': name}
            for number, name in sorted(zip((*IDS, 5), (*CLASSES, 'other'), strict=True))
        ],
    }
    path = folder / 'truth.json'
    path.write_text(json.dumps(content))
    return path


def sample(image: int, found: Found) -> dict[str, Any]:
    boxes = torch.tensor([box for box, *_ in found], dtype=torch.float32).reshape(-1, 4)
    masks = np.stack([mask_of(box) for box, *_ in found]) if found else np.zeros((0, SIDE, SIDE))
    return {
        'img_id': image,
        'ori_shape': (SIDE, SIDE),
        'pred_instances': {
            'bboxes': boxes,
            'labels': torch.tensor([label for _, label, _ in found], dtype=torch.long),
            'scores': torch.tensor([score for *_, score in found]),
            'masks': torch.from_numpy(masks.astype(bool)),
        },
    }


def evaluate(path: Path, found: list[Found], **options: Any) -> tuple[dict, ViT5CocoMetric]:
    metric = ViT5CocoMetric(**options)
    metric.dataset_meta = {'classes': CLASSES, 'ann_file': str(path)}
    for image, objects in enumerate(found, 1):
        metric.process(None, [sample(image, objects)])
    return metric.evaluate(10), metric


def expected(path: Path, found: list[Found], kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Stats and precision of pycocotools."""
    entries = []
    for image, objects in enumerate(found, 1):
        one = from_mmdet(sample(image, objects)['pred_instances'])
        entries += coco_results(one, image, IDS)
    if kind == 'segm':
        entries = [{k: v for k, v in entry.items() if k != 'bbox'} for entry in entries]
    with redirect_stdout(io.StringIO()):
        truth = COCO(str(path))
        run = COCOeval(truth, truth.loadRes(entries), kind)
        run.params.catIds = sorted(IDS)
        run.evaluate()
        run.accumulate()
        run.summarize()
    return run.stats, run.eval['precision']


@pytest.mark.parametrize('kind', ['bbox', 'segm'])
@pytest.mark.parametrize('case', ['perfect', 'shifted'])
def test_all_twelve_figures_equal_those_of_pycocotools(
    tmp_path: Path, case: str, kind: str
) -> None:
    annotations, found = pictures(case)
    path = write(tmp_path, annotations)
    scores, metric = evaluate(path, found)
    stats, precision = expected(path, found, kind)
    mine = [value for name, value in scores.items() if name.startswith(f'coco/{kind}_')]
    assert mine == pytest.approx(list(stats), abs=1e-9)
    if case == 'perfect':
        assert scores[f'coco/{kind}_mAP'] == pytest.approx(1)
    else:
        assert 0 < scores[f'coco/{kind}_mAP'] < scores[f'coco/{kind}_mAP_50'] < 1
    for row, number in zip(metric.table, IDS, strict=True):
        of_class = precision[:, :, sorted(IDS).index(number), 0, -1]
        assert row[f'{kind}_mAP'] == pytest.approx(of_class.mean(), abs=1e-4)
        assert row[f'{kind}_mAP_50'] == pytest.approx(of_class[0].mean(), abs=1e-4)
    assert [row['class'] for row in metric.table] == list(CLASSES)


def test_a_model_that_finds_nothing_scores_zero(tmp_path: Path) -> None:
    annotations, found = pictures('empty')
    scores, _ = evaluate(write(tmp_path, annotations), found)
    assert scores['coco/bbox_mAP'] == scores['coco/segm_AR@100'] == 0
    assert len(scores) == 24


def test_a_class_without_objects_has_no_score_of_its_own(tmp_path: Path) -> None:
    annotations, found = pictures('perfect')
    only = [entry for entry in annotations if entry['category_id'] != IDS[2]]
    scores, metric = evaluate(write(tmp_path, only), found)
    assert metric.table[2] == {
        'class': 'bird',
        **dict.fromkeys(('bbox_mAP', 'bbox_mAP_50', 'segm_mAP', 'segm_mAP_50')),
    }
    assert scores['coco/bbox_mAP'] == pytest.approx(1)


def test_boxes_alone_need_no_masks(tmp_path: Path) -> None:
    annotations, found = pictures('perfect')
    for entry in annotations:
        entry['segmentation'] = []
    path = write(tmp_path, annotations)
    scores, _ = evaluate(path, found, metric='bbox')
    assert len(scores) == 12
    assert scores['coco/bbox_mAP'] == pytest.approx(1)
    with pytest.raises(UserError, match='annotation 1'):
        evaluate(path, found)


def test_results_are_written_with_the_ids_of_the_file_and_not_scored(tmp_path: Path) -> None:
    annotations, found = pictures('shifted')
    prefix = str(tmp_path / 'new' / 'predictions')
    scores, _ = evaluate(
        write(tmp_path, annotations), found, format_only=True, outfile_prefix=prefix
    )
    assert scores == {}
    for kind, other in (('bbox', 'segmentation'), ('segm', 'bbox')):
        entries = json.loads(Path(f'{prefix}.{kind}.json').read_text())
        assert len(entries) == sum(map(len, found))
        assert {entry['category_id'] for entry in entries} == set(IDS)
        assert not any(other in entry for entry in entries)
        first = found[0][0]
        assert entries[0]['image_id'] == 1
        assert entries[0]['category_id'] == IDS[first[1]]
        assert entries[0]['score'] == pytest.approx(first[2])


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    for metric in ('bboxes', [], ['bbox', 'proposal']):
        with pytest.raises(ValueError, match='bbox'):
            ViT5CocoMetric(metric=metric)
    with pytest.raises(ValueError, match='outfile_prefix'):
        ViT5CocoMetric(format_only=True)
    metric = ViT5CocoMetric()
    metric.dataset_meta = {'classes': CLASSES}
    with pytest.raises(UserError, match='ann_file'):
        metric.compute_metrics([])
