"""Objects found in a picture, and their form in COCO's result files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Instances:
    """Objects in one picture.

    Attributes:
        boxes: Left, top, right, bottom in pixels, (n, 4).
        labels: Class numbers, (n,).
        scores: Confidence from 0 to 1, (n,); None for objects that are labelled.
        masks: (n, H, W), bool; None where only boxes are known.
    """

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray | None = None
    masks: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def above(self, score: float) -> 'Instances':
        """Those found with at least this confidence."""
        assert self.scores is not None
        keep = self.scores >= score
        masks = None if self.masks is None else self.masks[keep]
        return Instances(self.boxes[keep], self.labels[keep], self.scores[keep], masks)


def from_mmdet(found: Any) -> Instances:
    """Objects in mmdet's form: ``pred_instances`` or ``gt_instances`` of a data sample."""
    masks = found.get('masks')
    if masks is not None:  # BitmapMasks or PolygonMasks where it is the truth
        bits = masks.to_ndarray() if hasattr(masks, 'to_ndarray') else masks.cpu().numpy()
        masks = bits.astype(bool)
    boxes = found['bboxes']
    boxes = boxes.tensor if hasattr(boxes, 'tensor') else boxes
    scores = found.get('scores')
    return Instances(
        boxes.float().cpu().numpy(),
        found['labels'].cpu().numpy(),
        None if scores is None else scores.float().cpu().numpy(),
        masks,
    )


def run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """A mask in COCO's form: compressed where pycocotools is installed, else plain numbers.

    Args:
        mask: (H, W), bool.
    """
    try:
        from pycocotools.mask import encode  # of the detection extra
    except ImportError:
        pixels = mask.flatten(order='F')
        # The first run is of pixels outside, and empty where the mask begins at once.
        edges = np.flatnonzero(np.diff(pixels, prepend=False, append=~pixels[-1:]))
        counts = np.diff(edges, prepend=0).tolist()
        return {'size': list(mask.shape), 'counts': counts}
    code = encode(np.asfortranarray(mask, dtype=np.uint8))
    return {'size': code['size'], 'counts': code['counts'].decode()}


def coco_results(
    instances: Instances, image_id: int, category_ids: Sequence[int]
) -> list[dict[str, Any]]:
    """Entries of a COCO result file.

    Args:
        instances: With scores.
        image_id: The picture's id.
        category_ids: The annotation file's id of each class.

    Returns:
        For each object ``image_id``, ``category_id``, ``bbox`` as [x, y, width, height], ``score``
        and, with masks, ``segmentation`` as ``run_lengths``.
    """
    assert instances.scores is not None
    sizes = instances.boxes[:, 2:] - instances.boxes[:, :2]
    boxes = np.concatenate((instances.boxes[:, :2], sizes), axis=1)
    entries: list[dict[str, Any]] = [
        {
            'image_id': image_id,
            'category_id': category_ids[label],
            'bbox': [float(x) for x in box],
            'score': float(score),
        }
        for box, label, score in zip(boxes, instances.labels, instances.scores, strict=True)
    ]
    if instances.masks is not None:
        for entry, mask in zip(entries, instances.masks, strict=True):
            entry['segmentation'] = run_lengths(mask)
    return entries
