"""Objects of an annotation file: which are learnt, and which of them look wrong."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .check_report import Fault, Level
from .coco_annotations import LONGEST, Entry, run_lengths

OUTSIDE = 1.0  # pixels by which a box may stick out of its picture: rounding


def polygon_area(polygon: Sequence[float]) -> float:
    """Area between corners x, y, x, y ... in pixels, by the shoelace formula."""
    x, y = np.asarray(polygon, float).reshape(-1, 2).T
    inner = x[:-1] @ y[1:] - y[:-1] @ x[1:]
    return abs(float(inner + x[-1] * y[0] - y[-1] * x[0])) / 2


def meets(polygon: Sequence[float], width: float, height: float) -> bool:
    """Whether the bounding box of corners x, y, x, y ... overlaps a picture of this size."""
    x, y = polygon[::2], polygon[1::2]
    return min(x) < width and max(x) > 0 and min(y) < height and max(y) > 0


def is_background(counts: list[int] | str) -> bool:
    """Whether good run lengths are a single one, that of the background."""
    if isinstance(counts, str):
        return len(counts) <= LONGEST and len(run_lengths(counts) or ()) == 1
    return len(counts) == 1


class Tally:
    """Counts objects of one file the way mmdet learns from them, and collects faults.

    Args:
        split: For faults.
        path: The annotation file.
        labels: Class number of each category's id.
        with_masks: Whether masks are learnt, which ``check_masks`` has passed.
    """

    def __init__(self, split: str, path: Path, labels: Mapping[int, int], with_masks: bool) -> None:
        self.split, self.path, self.labels = split, path, labels
        self.with_masks = with_masks
        self.counts = np.zeros(len(labels), np.int64)
        self.ignored: Counter[str] = Counter()
        self.faults: list[Fault] = []

    def add(self, entry: Entry, width: float, height: float) -> None:
        """Look at one annotation of a picture of this size in pixels."""
        label = self.labels.get(entry['category_id'])
        if label is None:
            self.ignored['objects of other categories'] += 1
        elif entry.get('ignore'):
            self.ignored['objects marked as ignored'] += 1
        elif self.is_left_out(entry, width, height):
            self.ignored['objects too small or outside'] += 1
        elif entry.get('iscrowd'):
            self.ignored['crowds'] += 1
        elif self.with_masks and self.has_no_mask(entry, width, height):
            self.ignored['objects without a usable mask'] += 1
        else:
            self.counts[label] += 1

    def is_left_out(self, entry: Entry, width: float, height: float) -> bool:
        """Whether mmdet drops an object for its box; see ``CocoDataset.parse_data_info``."""
        x, y, w, h = entry['bbox']
        box = f'bbox {entry["bbox"]}'
        if w == 0 or h == 0 or entry['area'] <= 0:
            self.fault('warning', 'box without area', entry, f'{box}, area {entry["area"]}')
            return True
        size = f'{box}, the picture is {width}x{height} (width x height)'
        if min(x + w, width) <= max(x, 0) or min(y + h, height) <= max(y, 0):
            self.fault('warning', 'box outside the picture', entry, size)
            return True
        if w < 1 or h < 1:
            self.fault('warning', 'object of less than a pixel', entry, box)
            return True
        if min(x, y) < -OUTSIDE or x + w > width + OUTSIDE or y + h > height + OUTSIDE:
            self.fault('warning', 'box partly outside the picture', entry, size)
        return False

    def has_no_mask(self, entry: Entry, width: float, height: float) -> bool:
        """Whether mmdet drops an object since none of its polygons has three corners."""
        segmentation = entry['segmentation']
        if isinstance(segmentation, dict):
            if is_background(segmentation['counts']):
                self.fault('warning', 'mask without a pixel', entry, 'run lengths of background')
            return False
        usable = [one for one in segmentation if len(one) >= 6 and len(one) % 2 == 0]
        bad = [f'polygon of {len(one)} numbers' for one in segmentation if one not in usable]
        bad += [f'polygon without area {one[:8]}' for one in usable if polygon_area(one) == 0]
        if bad:
            self.fault('warning', 'degenerate polygon', entry, ', '.join(bad[:3]))
        if usable and not any(meets(one, width, height) for one in usable):
            words = f'polygons {usable[0][:8]} ..., the picture is {width}x{height}'
            self.fault('warning', 'mask without a pixel', entry, words)
        return not usable

    def fault(self, level: Level, kind: str, entry: Entry, words: str) -> None:
        """Note what is wrong with an annotation."""
        words = f'annotation {entry["id"]}: {words}'
        self.faults.append(Fault(level, kind, self.split, str(self.path), words))
