"""Errors of a test, collected picture by picture."""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from mmengine.hooks import Hook

from ..pictures import Palette
from .confusion import Confusion, confusions
from .page import Worst

WORST = 20  # pictures shown
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


def percent(share: float) -> str:
    """A share from 0 to 1 in words."""
    return '–' if np.isnan(share) else f'{100 * share:.1f} %'


def percents(shares: np.ndarray) -> list[str]:
    """Shares from 0 to 1 in words."""
    return [percent(share) for share in shares]


class ErrorHook(Hook, ABC):
    """Compares the predictions of a test with the truth, picture by picture, and reports errors.

    Of most pictures only figures are kept; of the ``WORST`` ones a sheet, drawn when one of them
    comes up. A picture without an error is never among them.

    Args:
        classes: Name of each class.
        palette: RGB colour of each class.

    Attributes:
        matrix: Confusion matrix so far; see ``confusion``.
        pictures: Path, score and further figures of each picture.
    """

    rest: str  # name of the last row and column
    ranking: str  # how pictures are scored, and what colours mean, in words

    def __init__(self, classes: Sequence[str], palette: Palette) -> None:
        self.classes = [name.strip() for name in classes]
        self.palette = palette
        self.matrix = np.zeros((len(classes) + 1,) * 2, np.int64)
        self.pictures: list[dict[str, Any]] = []
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
        # Of equal pictures the first stays.
        rank = (-score, float(errors), -float(len(self.pictures)))
        if not errors or np.isnan(score):
            return
        if len(self._heap) == WORST and rank < self._heap[0][0]:
            return
        told = [(one, self.say(one, matrix)) for one in confusions(matrix, TOLD)]
        words = ', '.join(f'{name.replace("_", " ")} {value:g}' for name, value in figures.items())
        heapq.heappush(self._heap, (rank, Worst('', sample.img_path, words, told, draw())))
        if len(self._heap) > WORST:
            heapq.heappop(self._heap)

    def names(self) -> list[str]:
        """Names of the rows and columns of the matrix."""
        return [*self.classes, self.rest]

    def worst(self) -> list[Worst]:
        """The worst pictures, the worst first."""
        return [one for _, one in sorted(self._heap, key=lambda pair: pair[0], reverse=True)]
