"""Errors of a test, collected picture by picture."""

import argparse
import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from mmengine.hooks import Hook

from ..pictures import Palette, save_picture
from .confusion import Confusion, confusions
from .page import Worst

WORST = 20  # pictures shown, if no other number is asked for
TOLD = 4  # confusions named for a picture


class Compared(NamedTuple):
    """Prediction and truth of a picture.

    Attributes:
        matrix: Confusion matrix; see ``confusion``.
        figures: For a table of all pictures, the first is the score; NaN where nothing counts.
        draw: Draws the sheet.
    """

    matrix: np.ndarray
    figures: dict[str, float]
    draw: Callable[[], np.ndarray]


def picture_number(text: str) -> float:
    """A number of pictures from the command line; infinity for 'all'."""
    if text == 'all':
        return math.inf
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be 'all', or 1 or more")
    return int(text)


def percent(share: float) -> str:
    """A share from 0 to 1 in words."""
    return '–' if np.isnan(share) else f'{100 * share:.1f} %'


def percents(shares: np.ndarray) -> list[str]:
    """Shares from 0 to 1 in words."""
    return [percent(share) for share in shares]


class ErrorHook(Hook, ABC):
    """Compares the predictions of a test with the truth, picture by picture, and reports errors.

    Of most pictures only figures are kept; of the worst ones a sheet, drawn when one of them comes
    up and kept on the disk.

    Args:
        classes: Name of each class.
        palette: RGB colour of each class.
        number: How many are the worst ones.
        folder: For a temporary folder of their sheets; None takes the system's.

    Attributes:
        matrix: Confusion matrix so far; see ``confusion``.
        pictures: Path, score and further figures of each picture.
        sheets: Temporary folder of the sheets.
    """

    rest: str  # name of the last row and column
    ranking: str  # how pictures are scored, and what colours mean, in words

    def __init__(
        self,
        classes: Sequence[str],
        palette: Palette,
        number: float = WORST,
        folder: Path | None = None,
    ) -> None:
        self.classes = [name.strip() for name in classes]
        self.palette = palette
        self.matrix = np.zeros((len(classes) + 1,) * 2, np.int64)
        self.pictures: list[dict[str, Any]] = []
        self.number = number
        self.sheets = TemporaryDirectory(prefix='.sheets_', dir=folder)
        self._heap: list[tuple[tuple[float, ...], Worst]] = []  # the best of the worst first

    @abstractmethod
    def compare(self, sample: Any) -> Compared:
        """Count the errors in a framework's data sample."""

    @abstractmethod
    def say(self, one: Confusion, matrix: np.ndarray) -> str:
        """A confusion in words that hold ``{true}`` and ``{predicted}``."""

    @abstractmethod
    def columns(
        self, table: Sequence[Mapping[str, Any]]
    ) -> tuple[np.ndarray, dict[str, Sequence[str]]]:
        """Figures of the classes.

        Args:
            table: For each class the figures of the metric, if it has such a table.

        Returns:
            What classes are ranked by, the worst has the least, and the columns by name.
        """

    @abstractmethod
    def headline(self, scores: Mapping[str, float]) -> dict[str, str]:
        """The scores that stand at the top.

        Args:
            scores: All scores of the evaluation.
        """

    def after_test_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Count the errors of a batch."""
        for sample in outputs:
            self.add(sample)

    def add(self, sample: Any) -> None:
        """Count the errors of a data sample with prediction and truth."""
        matrix, figures, draw = self.compare(sample)
        self.matrix += matrix
        self.pictures.append({'path': sample.img_path, **figures})
        score = next(iter(figures.values()))
        errors = matrix.sum() - np.trace(matrix)
        place = len(self.pictures)
        # Those where nothing counts come last; of equal pictures the first stays.
        rank = (-math.inf if np.isnan(score) else -score, float(errors), -float(place))
        if len(self._heap) == self.number and rank < self._heap[0][0]:
            return
        told = [(one, self.say(one, matrix)) for one in confusions(matrix, TOLD)]
        words = ', '.join(
            f'{name.replace("_", " ")} ' + ('–' if np.isnan(value) else f'{value:g}')
            for name, value in figures.items()
        )
        sheet = Path(self.sheets.name, f'{place}.png')
        save_picture(sheet, draw())
        heapq.heappush(self._heap, (rank, Worst('', sample.img_path, words, told, sheet)))
        if len(self._heap) > self.number:
            heapq.heappop(self._heap)[1].sheet.unlink()

    def names(self) -> list[str]:
        """Names of the rows and columns of the matrix."""
        return [*self.classes, self.rest]

    def worst(self) -> list[Worst]:
        """The worst pictures, the worst first."""
        return [one for _, one in sorted(self._heap, key=lambda pair: pair[0], reverse=True)]
