"""A confusion matrix as a picture."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

from .confusion import ratios

matplotlib.use('agg')  # files only: works without a display
import matplotlib.pyplot as plt

SHOWN_CLASSES = 40


def most_confused(matrix: np.ndarray, number: int = SHOWN_CLASSES) -> np.ndarray:
    """The classes with the most errors, as true or as predicted class, in their own order.

    The last row and column are kept if anything is in them, beside ``number`` classes.
    """
    errors = matrix.sum(0) + matrix.sum(1) - 2 * np.diag(matrix)
    shown = np.sort(np.argsort(-errors[:-1], kind='stable')[:number])
    return np.append(shown, len(matrix) - 1) if errors[-1] else shown


def draw_confusion(path: Path, matrix: np.ndarray, names: Sequence[str]) -> None:
    """Draw a confusion matrix: each cell is a share of its row, the true class.

    Of many classes the most confused are drawn, and the title says so.

    Args:
        path: PNG file.
        matrix: Counts; see ``confusion``.
        names: Of rows and columns.
    """
    shown = most_confused(matrix)
    shares = 100 * ratios(matrix, matrix.sum(1, keepdims=True).repeat(len(matrix), 1))
    shares = shares[np.ix_(shown, shown)]
    labels = [names[i][:20].replace('$', r'\$') for i in shown]  # else matplotlib reads formulas
    size = float(np.clip(3 + 0.45 * len(shown), 5, 15))
    font = 10 if len(shown) <= 15 else 7
    figure, axes = plt.subplots(figsize=(size + 1, size), constrained_layout=True)
    colors = plt.get_cmap('Blues').with_extremes(bad='0.92')
    drawn = axes.imshow(shares, cmap=colors, vmin=0, vmax=100)
    axes.set_xticks(range(len(shown)), labels, rotation=90, fontsize=font)
    axes.set_yticks(range(len(shown)), labels, fontsize=font)
    axes.set(xlabel='predicted', ylabel='true')
    of_all = f', the {SHOWN_CLASSES} of {len(names) - 1} classes with the most errors'
    more = len(names) - 1 > SHOWN_CLASSES
    axes.set_title('% of the true class' + of_all * more, fontsize=11)
    for row, column in zip(*np.nonzero(shares >= 0.5), strict=True):  # NaN is not
        share = shares[row, column]
        color = 'white' if share > 55 else 'black'
        words = f'{share:.0f}'
        axes.text(column, row, words, ha='center', va='center', fontsize=font - 1, color=color)
    figure.colorbar(drawn, shrink=0.6)
    figure.savefig(path, dpi=100)
    plt.close(figure)
