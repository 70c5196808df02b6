"""Which class is taken for which: counts of pixels and of objects, and figures from them.

A confusion matrix here is (classes + 1, classes + 1), int64: row = true class, column = predicted
class. The last row and column stand for none of the classes: of pixels, labels beyond the classes;
of objects, the background, so that the row holds false alarms and the column misses.
"""

from typing import Literal, NamedTuple

import numpy as np

from ..instances import Instances

MATCH_IOU = 0.5  # of boxes, from which on an object counts as found
NEAR_IOU = 0.1  # from which on a false alarm is an object of its class, badly placed


Alarm = Literal['twice', 'misplaced', 'false']


class Confusion(NamedTuple):
    """Pixels or objects of one class that were taken for another."""

    true: int
    predicted: int
    amount: int


class Matches(NamedTuple):
    """Which object found is which object labelled, as indices.

    Attributes:
        right: Pairs (labelled, found) of one class.
        wrong: Pairs (labelled, found) of two classes.
        missed: Labelled and not found.
        alarms: Found and not labelled; with the kind of false alarm, as in TIDE: 'twice' for an
            object of its class that is found already, 'misplaced' for one whose box overlaps too
            little, 'false' for nothing of its class.
    """

    right: list[tuple[int, int]]
    wrong: list[tuple[int, int]]
    missed: list[int]
    alarms: dict[int, Alarm]


def count_pixels(
    truth: np.ndarray, predicted: np.ndarray, classes: int, ignored: int = 255
) -> np.ndarray:
    """Confusion matrix of a picture's pixels.

    Args:
        truth: Class numbers, (H, W).
        predicted: Class numbers, (H, W).
        classes: Number of classes.
        ignored: Label of the pixels that do not count.
    """
    counted = truth != ignored
    rows, columns = (
        np.where((labels >= 0) & (labels < classes), labels, classes).astype(np.int64)
        for labels in (truth[counted], predicted[counted])
    )
    size = classes + 1
    return np.bincount(rows * size + columns, minlength=size**2).reshape(size, size)


def box_ious(found: np.ndarray, others: np.ndarray, crowds: bool = False) -> np.ndarray:
    """Intersection over union of boxes (n, 4) with others (m, 4), as COCO counts it; (n, m).

    Args:
        found: Left, top, right, bottom.
        others: Left, top, right, bottom.
        crowds: The others are crowds: the intersection is divided by the area of the found one.
    """
    from pycocotools.mask import iou  # of the detection extra

    sides = [
        np.concatenate((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), axis=1).astype(np.float64)
        for boxes in (found, others)
    ]
    if not len(found) or not len(others):
        return np.zeros((len(found), len(others)))
    return iou(*sides, [int(crowds)] * len(others))


def match_objects(truth: Instances, found: Instances, crowds: Instances | None = None) -> Matches:
    """Pair objects found with objects labelled, each with one at most.

    First those of one class, by COCO's rule: the most certain takes the free object with the
    largest overlap. Then what is left, of any classes, the largest overlap first. Overlap is that
    of boxes, ``MATCH_IOU`` or more.

    Args:
        truth: Objects labelled.
        found: Objects found, with scores.
        crowds: Regions with many objects: what is found there of their class is neither right nor a
            false alarm.
    """
    assert found.scores is not None
    overlaps = box_ious(found.boxes, truth.boxes)  # (found, labelled)
    free = np.where(overlaps >= MATCH_IOU, overlaps, 0)
    same = found.labels[:, None] == truth.labels[None]

    def take(one: int, other: int) -> tuple[int, int]:
        free[one], free[:, other] = 0, 0
        return other, one

    right, wrong = [], []
    for one in np.argsort(-found.scores, kind='stable').tolist():
        candidates = free[one] * same[one]
        if candidates.any():
            right.append(take(one, int(candidates.argmax())))
    outside = np.ones(len(found), bool)
    if crowds is not None:
        inside = box_ious(found.boxes, crowds.boxes, crowds=True) >= MATCH_IOU
        outside = ~(inside & (found.labels[:, None] == crowds.labels[None])).any(axis=1)
        free[~outside] = 0
    while free.any():
        one, other = np.unravel_index(free.argmax(), free.shape)
        wrong.append(take(int(one), int(other)))
    outside[[one for _, one in right + wrong]] = False
    seen = {other for other, _ in right + wrong}
    missed = [i for i in range(len(truth)) if i not in seen]
    alarms: dict[int, Alarm] = {}
    for one in np.flatnonzero(outside).tolist():
        best = (overlaps[one] * same[one]).max(initial=0)
        near: Alarm = 'misplaced' if best >= NEAR_IOU else 'false'
        alarms[one] = 'twice' if best >= MATCH_IOU else near
    return Matches(right, wrong, missed, alarms)


def count_objects(truth: Instances, found: Instances, matches: Matches, classes: int) -> np.ndarray:
    """Confusion matrix of a picture's objects; see ``match_objects``."""
    matrix = np.zeros((classes + 1, classes + 1), np.int64)
    for one, other in matches.right + matches.wrong:
        matrix[truth.labels[one], found.labels[other]] += 1
    np.add.at(matrix[:, classes], truth.labels[matches.missed], 1)
    np.add.at(matrix[classes], found.labels[list(matches.alarms)], 1)
    return matrix


def ratios(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    """Quotients, NaN where the whole is 0."""
    wholes = wholes.astype(np.float64)
    return np.divide(parts, wholes, out=np.full_like(wholes, np.nan), where=wholes > 0)


def ious(matrix: np.ndarray) -> np.ndarray:
    """IoU of each class, (classes,), as mmsegmentation computes it; NaN for one that is nowhere."""
    right = np.diag(matrix)[:-1]
    return ratios(right, matrix.sum(1)[:-1] + matrix.sum(0)[:-1] - right)


def recalls(matrix: np.ndarray) -> np.ndarray:
    """Share of each true class that was found, (classes,); of pixels its accuracy."""
    return ratios(np.diag(matrix)[:-1], matrix.sum(1)[:-1])


def precisions(matrix: np.ndarray) -> np.ndarray:
    """Share of each predicted class that is right, (classes,)."""
    return ratios(np.diag(matrix)[:-1], matrix.sum(0)[:-1])


def pixel_accuracy(matrix: np.ndarray) -> float:
    """Share of the pixels labelled with a class that are right; NaN without such pixels."""
    return float(ratios(np.trace(matrix[:-1, :-1]), matrix[:-1].sum()))


def mean_iou(matrix: np.ndarray) -> float:
    """Mean IoU over the classes that are labelled or predicted; NaN if there are none."""
    values = ious(matrix)
    return float(np.nanmean(values)) if np.isfinite(values).any() else np.nan


def f1(matrix: np.ndarray) -> float:
    """Harmonic mean of precision and recall over all objects.

    An object of the wrong class is one missed and one false alarm. Where there is nothing to find
    and nothing was found it is 1.
    """
    both = matrix[:-1].sum() + matrix[:, :-1].sum()
    return float(2 * np.trace(matrix[:-1, :-1]) / both) if both else 1.0


def confusions(matrix: np.ndarray, number: int) -> list[Confusion]:
    """The largest confusions, at most ``number`` of them, the largest first."""
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind='stable')[:number]
    pairs = zip(*np.unravel_index(order, wrong.shape), strict=True)
    return [Confusion(int(t), int(p), int(wrong[t, p])) for t, p in pairs if wrong[t, p]]
