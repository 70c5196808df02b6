"""What a check of data looks at and what it finds."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ..pictures import Palette

Level = Literal['error', 'warning']


@dataclass(frozen=True)
class Fault:
    """Something wrong in the data.

    Attributes:
        level: 'error' if training on it goes wrong, 'warning' if it looks like a mistake.
        kind: What it is, in a few words that all faults of the kind share.
        split: 'train', 'val' or 'test'.
        file: Where it is.
        value: The value found there.
    """

    level: Level
    kind: str
    split: str
    file: str
    value: str

    def __str__(self) -> str:
        return f'{self.file}: {self.value}'


def told(faults: Sequence[Fault]) -> list[str]:
    """File and value of each fault, a file only where it is another than before."""
    files = [''] + [fault.file for fault in faults]
    return [
        fault.value if fault.file == before else str(fault)
        for before, fault in zip(files, faults, strict=False)
    ]


class Found(NamedTuple):
    """What is in a picture and its labels.

    Attributes:
        size: Width and height in pixels; None if the picture cannot be read.
        counts: Of each class, (classes,); None where they were counted before.
        ignored: What is not learnt, by name.
        faults: What is wrong.
        indexed: Label file whose palette has other colours than the data set.
    """

    size: tuple[int, int] | None
    counts: np.ndarray | None
    ignored: Counter[str]
    faults: list[Fault]
    indexed: str | None = None


@dataclass
class Plan:
    """A data set whose names and annotation file were checked, and the pictures left to open.

    Attributes:
        classes: Name of each class.
        palette: RGB colour of each class.
        unit: What ``counts`` counts: 'pixels' or 'objects'.
        jobs: One for each picture that is there.
        look: Opens the picture of a job; from any thread.
        draw: RGB picture of a job with its labels over it; raises if that cannot be drawn.
        path: File of a job's picture.
        pictures: How many there should be.
        counts: Of each class, as far as they are known without opening pictures; (classes,).
        ignored: What is not learnt, by name, as far as it is known.
        faults: What is wrong without opening pictures.
        counted: Whether ``counts`` is complete already.
        notes: What was not checked, and why.
    """

    classes: Sequence[str]
    palette: Palette
    unit: str
    jobs: Sequence[Any]
    look: Callable[[Any], Found]
    draw: Callable[[Any], np.ndarray]
    path: Callable[[Any], Path]
    pictures: int
    counts: np.ndarray
    ignored: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    counted: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass
class Part:
    """Figures of one split.

    Attributes:
        split: 'train', 'val' or 'test'.
        pictures: How many there should be.
        sizes: Width and height of those that were opened and could be read.
        unit: 'pixels' or 'objects'; empty for data of an unknown kind.
        classes: Class name to pixels or objects.
        ignored: What is not learnt, by name.
        plans: The data sets of the split.
    """

    split: str
    pictures: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)
    unit: str = ''
    classes: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    plans: list[Plan] = field(default_factory=list)

    def size_range(self) -> dict[str, tuple[int, int]]:
        """The smallest, the median and the largest picture by area, as width and height."""
        ordered = sorted(self.sizes, key=lambda size: size[0] * size[1])
        if not ordered:
            return {}
        return {'min': ordered[0], 'median': ordered[len(ordered) // 2], 'max': ordered[-1]}

    def summary(self) -> dict[str, Any]:
        """The figures as JSON takes them."""
        return {
            'pictures': self.pictures,
            'readable': len(self.sizes),
            'sizes': self.size_range(),
            'unit': self.unit,
            'classes': dict(self.classes),
            'ignored': dict(self.ignored),
        }


@dataclass
class Report:
    """All that was found.

    Attributes:
        config: File name of the config.
        quick: Whether only some of the pictures were opened.
        parts: By split.
        faults: Errors and warnings.
        notes: What was not checked, and why.
    """

    config: str
    quick: bool
    parts: dict[str, Part] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def of_level(self, level: Level) -> list[Fault]:
        """Faults of one level."""
        return [fault for fault in self.faults if fault.level == level]

    def lines(self, level: Level, first: int = 3) -> list[str]:
        """One line for each kind of fault in each split, with the first few of them."""
        groups: dict[tuple[str, str], list[Fault]] = {}
        for fault in self.of_level(level):
            groups.setdefault((fault.split, fault.kind), []).append(fault)
        return [
            f'{split}: {kind} ({len(found)}): '
            + '; '.join(told(found[:first]))
            + (' ...' if len(found) > first else '')
            for (split, kind), found in groups.items()
        ]

    def as_json(self) -> dict[str, Any]:
        """The report as JSON takes it."""
        return {
            'config': self.config,
            'quick': self.quick,
            'errors': len(self.of_level('error')),
            'warnings': len(self.of_level('warning')),
            'splits': {split: part.summary() for split, part in self.parts.items()},
            'faults': [asdict(fault) for fault in self.faults],
            'notes': self.notes,
        }
