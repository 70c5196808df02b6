"""Pictures of a check: how often classes occur, and samples with their labels."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np

from .check import spread
from .check_report import Part, Report

matplotlib.use('agg')  # files only: works without a display
import matplotlib.pyplot as plt

SAMPLES, COLUMNS = 12, 4


def write_classes(report: Report, path: Path) -> bool:
    """Draw a bar for each class in each split.

    Returns:
        False, and nothing is written, if no class is known.
    """
    parts = [part for part in report.parts.values() if part.classes]
    if not parts:
        return False
    longest = max(len(part.classes) for part in parts)
    figure, row = plt.subplots(
        1,
        len(parts),
        figsize=(5 * len(parts), 1.5 + 0.2 * longest),
        squeeze=False,
        constrained_layout=True,
    )
    for axes, part in zip(row[0], parts, strict=True):
        names = [name.strip() for name in part.classes]
        axes.barh(range(len(names)), list(part.classes.values()))
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_xscale('symlog')  # rare classes are seen, and those that never occur
        axes.set(title=part.split, xlabel=part.unit, ylim=(len(names) - 0.5, -0.5))
        axes.grid(axis='x', alpha=0.3)
    figure.savefig(path, dpi=90)
    plt.close(figure)
    return True


BROKEN = np.full((64, 96, 3), 128, np.uint8)  # stands for what cannot be drawn


def drawn(part: Part, number: int) -> Iterator[tuple[str, np.ndarray]]:
    """Captions and RGB pictures with labels, from all over a split; a grey one if it is broken."""
    jobs = [(plan, job) for plan in part.plans for job in plan.jobs]
    for plan, job in spread(jobs, number):
        caption = f'{part.split}: {plan.path(job).stem}'
        try:
            yield caption, plan.draw(job)
        except Exception as error:  # broken files and labels raise anything
            yield f'{caption}\nnot drawn: {type(error).__name__}', BROKEN


def write_samples(report: Report, path: Path) -> bool:
    """Draw a sheet of pictures with their labels over them, as many of each split.

    Returns:
        False, and nothing is written, if none could be drawn.
    """
    number = SAMPLES // max(1, len(report.parts))
    pictures = [one for part in report.parts.values() for one in drawn(part, number)]
    if all(picture is BROKEN for _, picture in pictures):
        return False
    rows = -(-len(pictures) // COLUMNS)
    figure, grid = plt.subplots(
        rows,
        COLUMNS,
        figsize=(3.6 * COLUMNS, 3.2 * rows),
        squeeze=False,
        constrained_layout=True,
    )
    for axes in grid.flat:
        axes.axis('off')
    for axes, (caption, picture) in zip(grid.flat, pictures, strict=False):
        axes.imshow(picture)
        axes.set_title(caption, fontsize=9)
    figure.savefig(path, dpi=90)
    plt.close(figure)
    return True
