"""Errors of a detector."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..instances import from_mmdet
from ..pictures import read_picture
from .collect import Compared, ErrorHook, percent, percents
from .confusion import (
    MATCH_IOU,
    NEAR_IOU,
    Confusion,
    count_objects,
    f1,
    match_objects,
    precisions,
    ratios,
    recalls,
)
from .sheets import object_sheet

SCORE = 0.3  # objects less certain do not count as found


class ObjectErrors(ErrorHook):
    """Errors of a detector; see ``ErrorHook``."""

    rest = 'background'
    ranking = (
        f'Pictures are ranked by F1 = 2 right / (objects labelled + objects found), 1 where there '
        f'are none of both. Found are objects with a score of {SCORE} or more. One is right '
        f'whose box overlaps a labelled one of its class with an IoU of {MATCH_IOU} or more. What '
        'is left is paired in the same way over all classes as taken for another class; the rest '
        'is missed or a false alarm. Of the false alarms some are objects found twice, others '
        f'misplaced: their box overlaps one of its class with an IoU of {NEAR_IOU} or more. In the '
        'confusion matrix the column of the background holds what was missed, its row the false '
        'alarms. Crowds do not count. Missed objects are red, false alarms orange, wrong classes '
        'purple, right ones green.'
    )

    def compare(self, sample: Any) -> Compared:
        """Match objects; see ``ErrorHook``."""
        truth = from_mmdet(sample.gt_instances)
        found = from_mmdet(sample.pred_instances).above(SCORE)
        crowds = sample.get('ignored_instances')
        matches = match_objects(truth, found, None if crowds is None else from_mmdet(crowds))

        def draw() -> np.ndarray:
            picture = read_picture(Path(sample.img_path))
            size = sample.ori_shape[:2]
            return object_sheet(picture, size, truth, found, matches, self.classes, self.palette)

        matrix = count_objects(truth, found, matches, len(self.classes))
        kinds = list(matches.alarms.values())
        figures = {
            'F1': round(f1(matrix), 4),
            'right': len(matches.right),
            'wrong_class': len(matches.wrong),
            'missed': len(matches.missed),
            'false_alarms': len(kinds),
            'found_twice': kinds.count('twice'),
            'misplaced': kinds.count('misplaced'),
        }
        return Compared(matrix, figures, draw)

    def say(self, one: Confusion, matrix: np.ndarray) -> str:
        """A confusion in words; see ``ErrorHook``."""
        if one.true == len(self.classes):
            return f'false alarms of {{predicted}}: {one.amount}'
        of_all = f'{one.amount} of {matrix[one.true].sum()}'
        if one.predicted == len(self.classes):
            return f'{{true}} missed: {of_all}'
        return f'{{true}} taken for {{predicted}}: {of_all}'

    def columns(
        self, table: Sequence[Mapping[str, Any]]
    ) -> tuple[np.ndarray, dict[str, Sequence[str]]]:
        """Figures of the classes, ranked by F1; AP from the metric."""
        right, labelled = np.diag(self.matrix)[:-1], self.matrix[:-1].sum(1)
        score = ratios(2 * right, labelled + self.matrix[:, :-1].sum(0))
        average = {
            name: [f'{row[name]:.3f}' if row[name] is not None else '–' for row in table]
            for name in (table[0] if table else ())
            if name != 'class'
        }
        return score, {
            **{name.replace('_m', ' ').replace('_', ''): text for name, text in average.items()},
            'F1': percents(score),
            'recall': percents(recalls(self.matrix)),
            'precision': percents(precisions(self.matrix)),
            'objects': [str(number) for number in labelled],
            'missed': [str(number) for number in self.matrix[:-1, -1]],
            'false alarms': [str(number) for number in self.matrix[-1, :-1]],
        }

    def headline(self, scores: Mapping[str, float]) -> dict[str, str]:
        """Average precision, and precision, recall and F1 at one threshold."""
        shown = {
            f'{kind} {figure.replace("mAP", "AP").replace("_", "")}': f'{value:.3f}'
            for kind in ('bbox', 'segm')
            for figure in ('mAP', 'mAP_50', 'mAP_75')
            if (value := scores.get(f'coco/{kind}_{figure}')) is not None
        }
        right = np.trace(self.matrix)
        at = f'at score {SCORE}'
        return {
            **shown,
            f'precision {at}': percent(float(ratios(right, self.matrix[:, :-1].sum()))),
            f'recall {at}': percent(float(ratios(right, self.matrix[:-1].sum()))),
            f'F1 {at}': percent(f1(self.matrix)),
            **{
                name.replace('_', ' '): str(sum(row[name] for row in self.pictures))
                for name in ('missed', 'wrong_class', 'false_alarms', 'found_twice', 'misplaced')
            },
        }
