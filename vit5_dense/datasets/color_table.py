"""Colours of classes, from a JSON file."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError

IGNORE = 255
UNKNOWN = 256
FORM = 'it must be {"class name": [r, g, b], ..., "ignore": [[r, g, b], ...]} with 0 to 255'


class ColorTable(NamedTuple):
    """Colours of classes.

    Attributes:
        path: Where it was read from.
        classes: Name of each class.
        palette: RGB colour of each class.
        ignored: RGB colours that no class has and no head learns from.
    """

    path: Path
    classes: list[str]
    palette: list[list[int]]
    ignored: list[list[int]]

    def lookup(self) -> np.ndarray:
        """Class number of each colour r * 65536 + g * 256 + b, (2 ** 24,), uint16."""
        table = np.full(1 << 24, UNKNOWN, np.uint16)
        for number, color in enumerate(self.palette):
            table[packed(np.array(color))] = number
        for color in self.ignored:
            table[packed(np.array(color))] = IGNORE
        return table


def packed(colors: np.ndarray) -> np.ndarray:
    """RGB colours, (..., 3), as r * 65536 + g * 256 + b, (...,)."""
    red, green, blue = np.moveaxis(colors.astype(np.uint32), -1, 0)
    return (red << 16) | (green << 8) | blue


def is_color(value: Any) -> bool:
    """Whether it is three whole numbers from 0 to 255."""
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(type(part) is int and 0 <= part <= 255 for part in value)
    )


def read_table(path: Path) -> ColorTable:
    """Read a colour table: class names to colours in the order of the class numbers.

    Args:
        path: JSON file; its "ignore", if any, lists colours that become 255.

    Raises:
        UserError: If it has another form, a name or a colour twice, or no or over 255 classes.
    """
    try:
        pairs = json.loads(path.read_bytes(), object_pairs_hook=list)  # a dict would drop names
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f'--colors {path} cannot be read as JSON: {error}') from error
    named: dict[str, Any] = {}
    for pair in pairs if isinstance(pairs, list) else [None]:
        if not isinstance(pair, tuple):
            raise UserError(f'--colors {path}: {FORM}')
        name, value = pair
        if name in named:
            raise UserError(f'--colors {path} has {name!r} twice')
        named[name] = value
    ignored = named.pop('ignore', [])
    if not isinstance(ignored, list):
        raise UserError(f'--colors {path}: "ignore" is {ignored}: {FORM}')
    if not 1 <= len(named) <= IGNORE:
        raise UserError(f'--colors {path} has {len(named)} classes; 1 to {IGNORE} fit in 8 bits')
    owner: dict[tuple[int, ...], str] = {}
    for name, color in [*named.items(), *(('ignore', color) for color in ignored)]:
        if not is_color(color):
            raise UserError(f'--colors {path}: {name!r} has {color}: {FORM}')
        other = owner.setdefault(tuple(color), name)
        if other != name:
            raise UserError(f'--colors {path}: {other!r} and {name!r} both have {color}')
    return ColorTable(path, list(named), list(named.values()), ignored)
