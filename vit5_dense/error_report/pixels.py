"""Errors of a segmentor."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..pictures import Palette, read_picture
from .collect import WORST, Compared, ErrorHook, percent, percents
from .confusion import (
    Confusion,
    count_pixels,
    ious,
    mean_iou,
    pixel_accuracy,
    precisions,
    ratios,
    recalls,
)
from .sheets import pixel_sheet


class PixelErrors(ErrorHook):
    """Errors of a segmentor; see ``ErrorHook``.

    Args:
        classes: Name of each class.
        palette: RGB colour of each class.
        ignored: Label of the pixels that do not count.
        number: See ``ErrorHook``.
        folder: See ``ErrorHook``.
    """

    rest = '(no class)'
    ranking = (
        'Pictures are ranked by their mean IoU: the mean over the classes that are in the truth or '
        'in the prediction of that picture. Shares of pixels leave ignored pixels out. Wrong '
        'pixels are red, right ones gray, ignored ones black.'
    )

    def __init__(
        self,
        classes: Sequence[str],
        palette: Palette,
        ignored: int = 255,
        number: float = WORST,
        folder: Path | None = None,
    ) -> None:
        super().__init__(classes, palette, number, folder)
        self.ignored = ignored

    def compare(self, sample: Any) -> Compared:
        """Count pixels; see ``ErrorHook``."""
        truth, predicted = (
            part.data.long().cpu().numpy().reshape(part.data.shape[-2:])
            for part in (sample.gt_sem_seg, sample.pred_sem_seg)
        )

        def draw() -> np.ndarray:
            picture = read_picture(Path(sample.img_path))
            return pixel_sheet(picture, truth, predicted, self.palette, self.ignored)

        matrix = count_pixels(truth, predicted, len(self.classes), self.ignored)
        figures = {
            'mean_IoU': round(mean_iou(matrix), 4),
            'pixel_accuracy': round(pixel_accuracy(matrix), 4),
        }
        return Compared(matrix, figures, draw)

    def say(self, one: Confusion, matrix: np.ndarray) -> str:
        """A confusion in words; see ``ErrorHook``."""
        of_all = percent(one.amount / matrix.sum())
        of_class = percent(one.amount / matrix[one.true].sum())
        return f'{{true}} taken for {{predicted}}: {of_all} of the pixels, {of_class} of the class'

    def columns(
        self, table: Sequence[Mapping[str, Any]]
    ) -> tuple[np.ndarray, dict[str, Sequence[str]]]:
        """Figures of the classes, ranked by IoU."""
        return ious(self.matrix), {
            'IoU': percents(ious(self.matrix)),
            'accuracy': percents(recalls(self.matrix)),
            'precision': percents(precisions(self.matrix)),
            'share of pixels': percents(
                ratios(self.matrix.sum(1), np.full(len(self.matrix), self.matrix.sum()))
            ),
        }

    def headline(self, scores: Mapping[str, float]) -> dict[str, str]:
        """All scores of the evaluation; mmsegmentation gives few."""
        return {name: f'{value:g}' for name, value in scores.items()}
