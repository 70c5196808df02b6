import numpy as np
import pytest
import torch

from vit5_dense.mask_paste import paste_masks


def mmdet_masks(
    masks: np.ndarray, boxes: np.ndarray, size: tuple[int, int], threshold: float
) -> np.ndarray:
    """What mmdet's mask head makes of them on a CPU, one by one."""
    pytest.importorskip('mmcv._ext')
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask

    pasted = np.zeros((len(masks), *size), bool)
    for whole, mask, box in zip(pasted, masks, boxes, strict=True):
        values, place = _do_paste_mask(
            torch.from_numpy(mask)[None, None], torch.from_numpy(box)[None], *size
        )
        whole[place] = (values[0] >= threshold).numpy()
    return pasted


@pytest.mark.parametrize('size', [(97, 131), (300, 40), (1, 1)])
@pytest.mark.parametrize('threshold', [0.5, 0.3])
def test_masks_are_those_of_mmdet(size: tuple[int, int], threshold: float) -> None:
    rng = np.random.default_rng(0)
    ends = rng.uniform(0, 1, (60, 2, 2)) * (size[1], size[0])
    boxes = np.concatenate((ends.min(axis=1), ends.max(axis=1)), axis=1).astype(np.float32)
    boxes[0] = 0, 0, size[1], size[0]
    boxes[1, 2] = boxes[1, 0]  # no width
    boxes[2, 2:] = boxes[2, :2]  # no area
    boxes[3] = np.floor(boxes[3])
    boxes[4, :2] -= 3  # beyond the edge
    masks = rng.uniform(0, 1, (60, 28, 28)).astype(np.float32)
    got = paste_masks(masks, boxes, size, threshold)
    assert got.any()
    np.testing.assert_array_equal(got, mmdet_masks(masks, boxes, size, threshold))


def test_a_full_mask_fills_its_box_and_a_half_one_half() -> None:
    masks = np.ones((2, 28, 28), np.float32)
    masks[1, :, 14:] = 0
    boxes = np.array([[1, 2, 5, 6], [0, 0, 8, 4]], np.float32)
    full, half = paste_masks(masks, boxes, (8, 10))
    assert full.sum() == 16
    assert full[2:6, 1:5].all()
    assert half.sum() == 16
    assert half[:4, :4].all()


def test_no_objects_give_no_masks() -> None:
    none = paste_masks(np.zeros((0, 28, 28), np.float32), np.zeros((0, 4), np.float32), (5, 7))
    assert none.shape == (0, 5, 7)
    assert none.dtype == bool
