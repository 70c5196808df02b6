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
from .check_layers import compare_layers, error_of, prepare, session_for, with_layers
from .detection_parts import MARK

SIZES = ((96, 160), (160, 96), (333, 500))
# What a right file keeps to: difference of logits and of layers as in ``error_of``, overlap of
# matched boxes, error of scores.
# In fp16 only objects that are drawn count: rounding decides which of many doubtful ones stay.
LOGITS = {'fp32': 0.02, 'fp16': 0.05}
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
        count, those above ``CERTAIN``; and whether all is ``right``, None if nothing that counts
        was there to be compared.
    """
    assert found.scores is not None
    assert expected.scores is not None
    free = np.ones(len(found), bool)
    errors, overlaps, masks, missed, counted = [0.0], [1.0], [1.0], [], 0
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
        counted += score >= CERTAIN[precision]
        errors.append(float(error[best]))
        overlaps.append(float(overlap[best]))
        if expected.masks is not None:
            mine = None if found.masks is None else found.masks[best]
            masks.append(0.0 if mine is None else masks_overlap(mine, expected.masks[i]))
    alone = np.array([*missed, *found.scores[free]])
    unmatched = int((alone >= CERTAIN[precision]).sum())
    fine = unmatched == 0 and min(masks) >= MASKS[precision]
    return {
        'objects': len(expected),
        'found': len(found),
        'matched': len(errors) - 1,
        'error': max(errors),
        'overlap': min(overlaps),
        'masks': min(masks),
        'unmatched': unmatched,
        'right': fine if counted or not fine else None,
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
        logits: By the file, (classes, H, W); of one channel the probability.
        expected: The same by the model.
        precision: Of the file.
        threshold: Of the probability.

    Returns:
        ``agreement``, the share of pixels of one class; ``counted``, that of the pixels in which
        the largest difference of logits cannot change the class; this difference as ``error``, an
        absolute one, and as a ``share`` as in ``error_of``; and whether all is ``right``, None if
        no pixel counts.
    """
    if len(expected) > 1:
        best = np.partition(expected, -2, axis=0)[-2:]
        same, margin = labels == expected.argmax(0), (best[1] - best[0]) / 2
    else:
        logits, expected = to_logits(logits), to_logits(expected)
        gap = expected[0] - to_logits(np.array(threshold))
        same, margin = labels == (gap > 0), np.abs(gap)
    error = float(np.abs(logits - expected).max())
    share = error_of(logits[None], expected[None])
    counts = margin > error
    fine = share is None or (share <= LOGITS[precision] and bool(same[counts].all()))
    return {
        'agreement': float(same.mean()),
        'counted': float(counts.mean()),
        'error': error,
        'share': share,
        'right': None if fine and (share is None or not counts.any()) else fine,
    }


def to_logits(probability: np.ndarray) -> np.ndarray:
    """Logits of probabilities; those beyond 1e-6 and 1 - 1e-6 are not told apart."""
    inside = probability.astype(np.float64).clip(1e-6, 1 - 1e-6)
    return np.log(inside / (1 - inside))


def with_logits(path: Path) -> onnxruntime.InferenceSession:
    """A session of a segmentor's file that gives the values from which labels are chosen as well.

    Its outputs are ``labels``, they and the resized pictures.
    """
    model = onnx.load(path)
    *_, choice = (node for node in model.graph.node if node.op_type in ('ArgMax', 'Greater'))
    return session_for(model, ['labels', choice.input[0], f'{MARK}resized/0'])


def compare(
    path: Path, predictor: Segmenter | Detector, pictures: Sequence[np.ndarray]
) -> list[dict[str, Any]]:
    """Run a file and its model on pictures.

    Args:
        path: The file.
        predictor: The model.
        pictures: RGB, (H, W, 3), uint8.

    Returns:
        For each picture its ``size`` and what ``compare_labels`` or ``compare_objects`` gives; if
        there is no object that counts in any of them, ``layers`` as well, the largest difference in
        outputs of layers, which then decides whether all is ``right``.
    """
    model = OnnxModel(path)
    precision = model.precision
    rows: list[dict[str, Any]] = [{'size': picture.shape[:2]} for picture in pictures]
    if isinstance(predictor, Segmenter):
        session = with_logits(path)
        for row, picture in zip(rows, pictures, strict=True):
            labels, logits, inner = session.run(None, {'pictures': picture[None]})
            item = prepare(predictor, picture, inner[0])
            if item is None:
                row |= {'agreement': 0.0, 'counted': 0.0, 'error': np.inf, 'share': np.inf}
                row['right'] = False
                continue
            expected = predictor.logits([item])[0].numpy()
            limit = predictor.model.decode_head.threshold or 0.5
            row |= compare_labels(labels[0], logits[0], expected, precision, limit)
        return rows
    for row, picture in zip(rows, pictures, strict=True):
        found = model(picture)
        assert isinstance(found, Instances)
        row |= compare_objects(found, predictor(picture), precision)
    if any(row['right'] is not None for row in rows):
        return rows
    del model  # makes room
    session = with_layers(path)
    for row, picture in zip(rows, pictures, strict=True):
        error = row['layers'] = compare_layers(session, predictor, picture)
        row['right'] = None if error is None else error <= LOGITS[precision]
    return rows
