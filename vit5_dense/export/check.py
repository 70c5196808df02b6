"""An exported file against the model that it was made from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from PIL import Image

from ..inference import Detector, Segmenter
from ..instances import Instances
from ..onnx_model import OnnxModel

SIZES = ((96, 160), (160, 96), (333, 500))
# What a right file keeps to: difference of logits as a share of the largest, share of the pixels
# whose two best classes are further apart than that, overlap of matched boxes, error of scores.
# In fp16 only objects that are drawn count: rounding decides which of many doubtful ones stay.
# 2 % is what one step of 256 in a resized picture can do: OpenCV rounds in fixed point.
LOGITS = {'fp32': 0.02, 'fp16': 0.05}
AGREEMENT = {'fp32': 0.999, 'fp16': 0.999}
OVERLAP = {'fp32': 0.99, 'fp16': 0.9}
SCORE = {'fp32': 1e-3, 'fp16': 2e-2}
CERTAIN = {'fp32': 0.0, 'fp16': 0.3}
MASKS = {'fp32': 0.95, 'fp16': 0.8}  # overlap: one pixel of a small mask may change


def resized(picture: np.ndarray, sizes: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """A picture in several sizes (H, W)."""
    image = Image.fromarray(picture)
    return [np.asarray(image.resize((width, height))) for height, width in sizes]


def boxes_overlap(one: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of a box (4,) with others (n, 4)."""
    low = np.maximum(one[:2], others[:, :2])
    high = np.minimum(one[2:], others[:, 2:])
    common = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1) + np.prod(one[2:] - one[:2])
    return common / np.maximum(areas - common, 1e-9)


def masks_overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Intersection over union of two masks (H, W); 1 if both are empty."""
    union = np.count_nonzero(one | other)
    return np.count_nonzero(one & other) / union if union else 1.0


def compare_objects(found: Instances, expected: Instances, precision: str) -> dict[str, Any]:
    """Match objects one to one.

    Args:
        found: By the file.
        expected: By the model.
        precision: Of the file.

    Returns:
        ``objects`` of the model and ``found`` by the file; ``matched`` pairs of one class and
        nearly one box and score; ``error`` the largest difference of their scores, ``overlap`` the
        least of their boxes, ``masks`` that of their masks; ``unmatched`` objects of either that
        count, those above ``CERTAIN``; and whether all is ``right``.
    """
    assert found.scores is not None
    assert expected.scores is not None
    free = np.ones(len(found), bool)
    errors, overlaps, masks, missed = [0.0], [1.0], [1.0], []
    rows = zip(expected.boxes, expected.labels, expected.scores, strict=True)
    for i, (box, label, score) in enumerate(rows):
        overlap = boxes_overlap(box, found.boxes)
        error = np.abs(found.scores - score)
        fit = free & (found.labels == label)
        fit &= (overlap >= OVERLAP[precision]) & (error <= SCORE[precision])
        if not fit.any():
            missed.append(score)
            continue
        best = int(np.argmax(np.where(fit, overlap, -1)))
        free[best] = False
        errors.append(float(error[best]))
        overlaps.append(float(overlap[best]))
        if expected.masks is not None:
            mine = None if found.masks is None else found.masks[best]
            masks.append(0.0 if mine is None else masks_overlap(mine, expected.masks[i]))
    alone = np.array([*missed, *found.scores[free]])
    unmatched = int((alone >= CERTAIN[precision]).sum())
    return {
        'objects': len(expected),
        'found': len(found),
        'matched': len(errors) - 1,
        'error': max(errors),
        'overlap': min(overlaps),
        'masks': min(masks),
        'unmatched': unmatched,
        'right': unmatched == 0 and min(masks) >= MASKS[precision],
    }


def compare_labels(
    labels: np.ndarray,
    logits: np.ndarray,
    expected: np.ndarray,
    precision: str,
    threshold: float = 0.5,
) -> dict[str, Any]:
    """Compare what is seen in pixels.

    Args:
        labels: Class numbers by the file, (H, W).
        logits: By the file, (classes, H, W).
        expected: By the model, (classes, H, W); of one channel the probability.
        precision: Of the file.
        threshold: Of the probability.

    Returns:
        ``agreement``, the share of pixels of one class; ``decided``, the same among those where
        the model's best classes are not nearly equal; ``error``, the largest difference of
        logits; ``range``, the largest of them; and whether all is ``right``.
    """
    scale = float(np.abs(expected).max())
    error = float(np.abs(logits - expected).max())
    if len(expected) > 1:
        best = np.partition(expected, -2, axis=0)[-2:]
        same, margin = labels == expected.argmax(0), best[1] - best[0]
    else:
        same, margin = labels == (expected[0] > threshold), np.abs(expected[0] - threshold)
    decided = margin > LOGITS[precision] * scale
    share = float(same[decided].mean()) if decided.any() else 1.0
    return {
        'agreement': float(same.mean()),
        'decided': share,
        'error': error,
        'range': scale,
        'right': share >= AGREEMENT[precision] and error <= LOGITS[precision] * scale,
    }


def with_logits(path: Path) -> onnxruntime.InferenceSession:
    """A session of a segmentor's file that gives the values from which labels are chosen."""
    model = onnx.load(path)
    *_, choice = (node for node in model.graph.node if node.op_type in ('ArgMax', 'Greater'))
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name=choice.input[0]))
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=['CPUExecutionProvider']
    )


def compare(
    path: Path, predictor: Segmenter | Detector, pictures: Sequence[np.ndarray]
) -> list[dict[str, Any]]:
    """Run a file and its model on pictures.

    Args:
        path: The file.
        predictor: The model.
        pictures: RGB, (H, W, 3), uint8.

    Returns:
        For each picture its ``size`` and what ``compare_labels`` or ``compare_objects`` gives.
    """
    model = OnnxModel(path)
    session = with_logits(path) if isinstance(predictor, Segmenter) else None
    rows = []
    for picture in pictures:
        row: dict[str, Any] = {'size': picture.shape[:2]}
        found = model(picture)
        if isinstance(predictor, Segmenter):
            assert session
            assert isinstance(found, np.ndarray)
            expected = predictor.logits([predictor.prepare(picture)])[0].numpy()
            (logits,) = session.run(None, {'pictures': picture[None]})
            limit = predictor.model.decode_head.threshold or 0.5
            row |= compare_labels(found, logits[0], expected, model.precision, limit)
        else:
            assert isinstance(found, Instances)
            row |= compare_objects(found, predictor(picture), model.precision)
        rows.append(row)
    return rows
