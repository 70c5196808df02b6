import json
import sys
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.structures import InstanceData

from vit5_dense.instances import Instances, coco_results, from_mmdet, run_lengths

BOXES = [[1.0, 2.0, 4.5, 8.0], [0.0, 0.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]]
LABELS, SCORES = [1, 0, 1], [0.9, 0.3, 0.1]
#: Three masks of two rows and three columns.
MASKS = [[[0, 1, 0], [0, 1, 1]], [[1, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]]]


def instances(number: int = 3, scores: bool = True, masks: bool = True) -> Instances:
    """The first few of the objects above."""
    return Instances(
        np.array(BOXES, np.float32)[:number],
        np.array(LABELS)[:number],
        np.array(SCORES, np.float32)[:number] if scores else None,
        np.array(MASKS, bool)[:number] if masks else None,
    )


def found(number: int = 3, dtype: torch.dtype = torch.float32, **more: Any) -> dict[str, Any]:
    """The same as a detector gives them."""
    return {
        'bboxes': torch.tensor(BOXES, dtype=dtype)[:number],
        'labels': torch.tensor(LABELS)[:number],
        'scores': torch.tensor(SCORES, dtype=dtype)[:number],
        'masks': torch.tensor(MASKS, dtype=torch.bool)[:number],
        **more,
    }


def check(got: Instances, wanted: Instances) -> None:
    for name in ('boxes', 'labels', 'scores', 'masks'):
        ours, theirs = getattr(got, name), getattr(wanted, name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            np.testing.assert_array_equal(ours, theirs, name)
            assert ours.dtype == theirs.dtype, name


@pytest.mark.parametrize('masks', [True, False])
@pytest.mark.parametrize(('score', 'kept'), [(0.0, 3), (0.1, 3), (0.3, 2), (0.31, 1), (0.95, 0)])
def test_above_keeps_this_confidence_and_more(score: float, kept: int, masks: bool) -> None:
    few = instances(masks=masks).above(score)
    assert len(few) == kept
    check(few, instances(kept, masks=masks))


@pytest.mark.parametrize('kind', [dict, InstanceData])
@pytest.mark.parametrize('number', [3, 0])
def test_what_a_detector_finds_becomes_arrays(kind: Any, number: int) -> None:
    """mmengine hands samples to metrics as dicts."""
    got = from_mmdet(kind(**found(number)))
    check(got, instances(number))
    assert got.masks.shape == (number, 2, 3)


def test_masks_and_scores_may_be_missing() -> None:
    only = {key: value for key, value in found().items() if key in ('bboxes', 'labels')}
    check(from_mmdet(only), instances(scores=False, masks=False))
    assert from_mmdet({**found(), 'masks': None}).masks is None


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_become_fp32(dtype: torch.dtype) -> None:
    got = from_mmdet(found(dtype=dtype))
    assert (got.boxes.dtype, got.scores.dtype) == (np.float32, np.float32)
    np.testing.assert_array_equal(got.boxes, BOXES)
    np.testing.assert_allclose(got.scores, SCORES, rtol=4e-3)


@pytest.mark.parametrize('number', [2, 0])
@pytest.mark.parametrize('polygons', [False, True], ids=['bitmaps', 'polygons'])
def test_the_truth_of_mmdet_becomes_arrays(polygons: bool, number: int) -> None:
    structures = pytest.importorskip('mmdet.structures.mask', exc_type=ImportError)
    boxes = pytest.importorskip('mmdet.structures.bbox', exc_type=ImportError)
    square = np.zeros((4, 6), np.uint8)
    square[1:3, 2:5] = 1
    masks = structures.BitmapMasks([square] * number, 4, 6)
    if polygons:
        corners = np.array([2.0, 1, 5, 1, 5, 3, 2, 3])
        masks = structures.PolygonMasks([[corners]] * number, 4, 6)
    truth = InstanceData(
        bboxes=boxes.HorizontalBoxes(torch.tensor([[2.0, 1, 5, 3]] * number).reshape(-1, 4)),
        labels=torch.tensor([4] * number, dtype=torch.int64),
        masks=masks,
    )
    got = from_mmdet(truth)
    assert got.scores is None
    assert got.masks.dtype == bool
    np.testing.assert_array_equal(got.masks, [square.astype(bool)] * number or np.empty((0, 4, 6)))
    assert got.boxes.tolist() == [[2.0, 1.0, 5.0, 3.0]] * number
    assert got.labels.tolist() == [4] * number


def test_result_entries_are_coco_s() -> None:
    """Down the columns 2 off, 2 on, 1 off, 1 on (stored as 1 - 2, 'O'), and 0 off, 1 on, 5 off."""
    pytest.importorskip('pycocotools.mask')
    entries = coco_results(instances(2), 77, [30, 20])
    assert [entry.pop('score') for entry in entries] == pytest.approx(SCORES[:2])
    assert entries == [
        {
            'image_id': 77,
            'category_id': 20,
            'bbox': [1.0, 2.0, 3.5, 6.0],
            'segmentation': {'size': [2, 3], 'counts': '221O'},
        },
        {
            'image_id': 77,
            'category_id': 30,
            'bbox': [0.0, 0.0, 3.0, 1.0],
            'segmentation': {'size': [2, 3], 'counts': '015'},
        },
    ]


def test_run_lengths_decode_to_the_mask() -> None:
    coder = pytest.importorskip('pycocotools.mask')
    masks = np.random.default_rng(0).random((3, 37, 53)) > 0.6
    many = Instances(np.array(BOXES), np.array(LABELS), np.array(SCORES), masks)
    text = json.dumps(coco_results(many, 1, range(2)))
    for entry, mask in zip(json.loads(text), masks, strict=True):
        np.testing.assert_array_equal(coder.decode(entry['segmentation']), mask)


def test_run_lengths_without_pycocotools_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    coder = pytest.importorskip('pycocotools.mask')
    masks = np.random.default_rng(0).random((6, 37, 53)) > 0.6
    masks[0], masks[1], masks[2, 0, 0], masks[3, 0, 0] = True, False, True, False
    monkeypatch.setitem(sys.modules, 'pycocotools.mask', None)
    assert run_lengths(np.array([[0, 1, 1], [1, 1, 0]], bool)) == {
        'size': [2, 3],
        'counts': [1, 4, 1],
    }
    for mask in masks:
        lengths = json.loads(json.dumps(run_lengths(mask)))
        np.testing.assert_array_equal(coder.decode(coder.frPyObjects(lengths, 37, 53)), mask)


def test_results_without_masks_have_no_segmentation() -> None:
    entries = coco_results(instances(masks=False), 5, range(2))
    assert [set(entry) for entry in entries] == [{'image_id', 'category_id', 'bbox', 'score'}] * 3
    assert entries[2]['bbox'] == [2.0, 2.0, 0.0, 0.0]
    json.dumps(entries)


@pytest.mark.parametrize('masks', [True, False])
def test_no_objects_give_no_entries(masks: bool) -> None:
    assert len(instances(0)) == 0
    assert coco_results(instances(0, masks=masks), 5, range(2)) == []
