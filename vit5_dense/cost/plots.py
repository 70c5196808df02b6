"""Pictures of measurements."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use('agg')  # files only: works without a display
import matplotlib.pyplot as plt

Row = Mapping[str, Any]


def plot_compare(rows: Sequence[Row], path: Path) -> None:
    """Bars of the median time of each subject, a panel for each mode and type."""
    kinds = list(dict.fromkeys((row['mode'], row['dtype']) for row in rows))
    figure, panels = plt.subplots(
        1, len(kinds), figsize=(6 * len(kinds), 4), squeeze=False, constrained_layout=True
    )
    for (mode, dtype), axes in zip(kinds, panels[0], strict=True):
        mine = [row for row in rows if (row['mode'], row['dtype']) == (mode, dtype)][::-1]
        axes.barh([row['name'] for row in mine], [1e3 * row['median'] for row in mine])
        for place, row in enumerate(mine):
            axes.text(1e3 * row['median'], place, f' {row["times"]:.2f}x', va='center')
        axes.set(title=f'{mode}, {dtype}', xlabel='ms')
        axes.margins(x=0.15)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def plot_growth(rows: Sequence[Row], path: Path) -> None:
    """Time and memory over the side of the picture, both on logarithmic axes."""
    figure, panels = plt.subplots(1, 2, figsize=(12, 4), constrained_layout=True)
    for axes, key, unit, scale in zip(
        panels, ('median', 'peak'), ('ms', 'MB'), (1e3, 2**-20), strict=True
    ):
        for name in dict.fromkeys(row['name'] for row in rows):
            mine = [row for row in rows if row['name'] == name and row[key]]
            sides = [row['side'] for row in mine]
            axes.plot(sides, np.array([row[key] for row in mine]) * scale, marker='o', label=name)
        axes.set(xscale='log', yscale='log', xlabel='side in px', ylabel=unit)
        axes.set_xticks(sides, [str(side) for side in sides])
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=90)
    plt.close(figure)
