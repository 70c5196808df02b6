from typing import Any

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip('mmcv._ext')

from mmdet.structures import DetDataSample
from mmengine.model import BaseModel
from mmengine.structures import InstanceData

from vit5_dense.detection import ViT5DetTTAModel
from vit5_dense.detection.tta import undo_flip

HEIGHT, WIDTH = 30, 50


def mask_of(box: tuple[int, ...]) -> torch.Tensor:
    left, top, right, bottom = box
    mask = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    mask[top:bottom, left:right] = True
    return mask


def view(*objects: tuple[tuple[int, ...], int, float], **meta: Any) -> DetDataSample:
    """What was found in one view: boxes, labels, scores, with a mask that fills the box."""
    boxes = torch.tensor([box for box, *_ in objects], dtype=torch.float32).reshape(-1, 4)
    masks = [mask_of(box) for box, *_ in objects]
    sample = DetDataSample(metainfo={'ori_shape': (HEIGHT, WIDTH), **meta})
    sample.pred_instances = InstanceData(
        bboxes=boxes,
        labels=torch.tensor([label for _, label, _ in objects], dtype=torch.long),
        scores=torch.tensor([score for *_, score in objects]),
        masks=torch.stack(masks) if masks else torch.zeros(0, HEIGHT, WIDTH, dtype=torch.bool),
    )
    return sample


class Detector(BaseModel):
    """Never asked: views are given."""

    def forward(self) -> None: ...


@pytest.fixture
def model() -> ViT5DetTTAModel:
    config = {'nms': {'type': 'nms', 'iou_threshold': 0.5}, 'max_per_img': 3}
    return ViT5DetTTAModel(config, Detector())


@pytest.mark.parametrize(
    ('direction', 'box'),
    [
        ('horizontal', (WIDTH - 12, 4, WIDTH - 2, 9)),
        ('vertical', (2, HEIGHT - 9, 12, HEIGHT - 4)),
        ('diagonal', (WIDTH - 12, HEIGHT - 9, WIDTH - 2, HEIGHT - 4)),
    ],
)
def test_a_flip_is_undone_for_boxes_and_masks(direction: str, box: tuple[int, ...]) -> None:
    found = view((box, 0, 0.9), flip=True, flip_direction=direction)
    boxes, masks = undo_flip(
        found.pred_instances.bboxes, found.pred_instances.masks, found.metainfo
    )
    assert_close(boxes, torch.tensor([[2.0, 4, 12, 9]]))
    assert_close(masks[0], mask_of((2, 4, 12, 9)))


def test_of_views_that_agree_the_best_object_stays_with_its_mask(model: ViT5DetTTAModel) -> None:
    plain = view(((2, 4, 12, 9), 0, 0.6), ((20, 20, 30, 28), 1, 0.5), flip=False)
    box = (WIDTH - 12, 4, WIDTH - 3, 9)  # flipped back: 3 to 12
    flipped = view((box, 0, 0.8), flip=True, flip_direction='horizontal')
    (merged,) = model.merge_preds([[plain, flipped]])
    found = merged.pred_instances
    assert_close(found.scores, torch.tensor([0.8, 0.5]))
    assert_close(found.bboxes, torch.tensor([[3.0, 4, 12, 9], [20, 20, 30, 28]]))
    assert found.labels.tolist() == [0, 1]
    assert_close(found.masks[0], mask_of((3, 4, 12, 9)))
    assert_close(found.masks[1], mask_of((20, 20, 30, 28)))


def test_objects_of_two_classes_do_not_displace_each_other(model: ViT5DetTTAModel) -> None:
    one, two = view(((2, 4, 12, 9), 0, 0.6)), view(((2, 4, 12, 9), 1, 0.5))
    assert len(model.merge_preds([[one, two]])[0].pred_instances) == 2


def test_no_more_than_the_maximum_and_none_at_all(model: ViT5DetTTAModel) -> None:
    boxes = [((10 * i, 0, 10 * i + 8, 8), 0, 0.9 - 0.1 * i) for i in range(5)]
    (merged,) = model.merge_preds([[view(*boxes), view()]])
    assert_close(merged.pred_instances.scores, torch.tensor([0.9, 0.8, 0.7]))
    (nothing,) = model.merge_preds([[view(), view()]])
    assert len(nothing.pred_instances) == 0
    assert nothing.pred_instances.masks.shape == (0, HEIGHT, WIDTH)


def test_detectors_without_masks_are_merged_as_well(model: ViT5DetTTAModel) -> None:
    sample = view(((2, 4, 12, 9), 0, 0.6))
    del sample.pred_instances.masks
    (merged,) = model.merge_preds([[sample]])
    assert 'masks' not in merged.pred_instances
    assert len(merged.pred_instances) == 1
