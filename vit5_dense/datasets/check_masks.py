"""Label maps of a segmentation data set, looked at as they are on disk."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from ..pictures import Palette, PictureError
from .check_report import Fault, Found

UNLEARNT = 'ignored pixels'


class Rule(NamedTuple):
    """How a label file is read.

    Attributes:
        split: For faults.
        table: Class number of each value of a file, (256,).
        classes: How many there are.
        ignored: Class numbers that no head learns from.
        shifted: Whether 0 in a file is no class and 1 the first (``reduce_zero_label``).
        palette: RGB colour of each class.
        decoder: What files are decoded with, see ``Source``.
    """

    split: str
    table: np.ndarray
    classes: int
    ignored: frozenset[int]
    shifted: bool
    palette: Palette = ()
    decoder: str = 'pillow'


def label_table(reduce_zero_label: bool, label_map: Mapping[int, int] | None) -> np.ndarray:
    """Class number of each value that 8 bits hold, as mmseg's ``LoadAnnotations`` makes it.

    Args:
        reduce_zero_label: 0 becomes 255, 1 becomes 0 and so on.
        label_map: Applied after that; numbers that are not in it stay.

    Returns:
        (256,), int64.
    """
    table: np.ndarray = np.arange(256)
    if reduce_zero_label:
        table = np.where((table == 0) | (table == 255), 255, table - 1)
    shifted = table.copy()
    for old, new in (label_map or {}).items():
        table[shifted == old] = new
    return table


def read_values(path: Path, decoder: str = 'pillow') -> tuple[np.ndarray, list[int]]:
    """A mask as mmseg decodes it: Pillow gives a palette's indices, others its colours.

    Returns:
        (H, W), or (H, W, channels); and R, G, B, R ... of the palette whose indices these are.

    Raises:
        PictureError: If it cannot be read whole.
    """
    try:
        if decoder != 'pillow':
            from mmcv import imfrombytes

            values = imfrombytes(path.read_bytes(), 'unchanged', backend=decoder)
            if values is None:
                raise ValueError(f'{decoder} knows no such format')
            return values, []
        with Image.open(path) as file:
            return np.asarray(file), (file.mode == 'P' and file.getpalette()) or []
    except Exception as error:  # decoders raise anything on a broken file
        raise PictureError(f'{path} cannot be read: {error}') from error


def mode_of(path: Path) -> str:
    """Pillow's name for the kind of a picture that can be read."""
    with Image.open(path) as file:
        return file.mode


def histogram(values: np.ndarray) -> dict[int | float, int]:
    """How often each value occurs."""
    if values.dtype in (np.uint8, np.bool_):
        counts = np.bincount(values.reshape(-1).astype(np.uint8), minlength=256)
        return {int(value): int(counts[value]) for value in np.flatnonzero(counts)}
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def look_at_labels(path: Path, rule: Rule, size: tuple[int, int] | None) -> Found:
    """Check a label map.

    Args:
        path: The file.
        rule: How it is read.
        size: Width and height of its picture, if that could be read.

    Returns:
        Pixels of each class, and faults.
    """
    faults: list[Fault] = []
    counts, ignored = np.zeros(rule.classes, np.int64), Counter[str]()
    try:
        values, palette = read_values(path, rule.decoder)
    except PictureError as error:
        reason = str(error).removeprefix(f'{path} ')
        return Found(None, counts, ignored, [error_in('unreadable mask', rule.split, path, reason)])
    height, width = values.shape[:2]
    if size and size != (width, height):
        words = f'the mask is {width}x{height}, the picture {size[0]}x{size[1]} (width x height)'
        faults.append(error_in('size mismatch', rule.split, path, words))
    if values.ndim > 2:
        words = f'{mode_of(path)} with {values.shape[2]} channels; a mask has one, of class numbers'
        if mode_of(path) == 'P':
            words += f": set imdecode_backend='pillow', {rule.decoder} gives a palette's colours"
        faults.append(error_in('mask of colours', rule.split, path, words))
        return Found(None, counts, ignored, faults)
    found = histogram(values)
    if set(found) == {0, 255}:
        words = 'only 0 and 255, and 255 is ignored: are the objects 255 instead of a class number?'
        faults.append(Fault('warning', 'mask of 0 and 255', rule.split, str(path), words))
    outside = []
    for value, number in found.items():
        if not 0 <= value <= 255 or value != int(value):
            cut = f' becomes {int(value) % 256} as 8 bits' if isfinite(value) else ''
            outside.append(f'{value}{cut} ({number} pixels)')
            continue
        label = int(rule.table[int(value)])
        if label in rule.ignored:
            ignored[UNLEARNT] += number
        elif label < rule.classes:
            counts[label] += number
        else:
            read = f' is class {label} after reduce_zero_label' if rule.shifted else ''
            outside.append(f'{int(value)}{read} ({number} pixels)')
    if outside:
        more = f' and {len(outside) - 5} more values' if len(outside) > 5 else ''
        words = f'{", ".join(outside[:5])}{more}; there are {rule.classes} classes, 0 to '
        words += f'{rule.classes - 1}, and {", ".join(map(str, sorted(rule.ignored)))} is ignored'
        faults.append(error_in('label out of range', rule.split, path, words))
    elif values.dtype.itemsize > 1:
        words = f'{mode_of(path)}: more than 8 bits, of which 8 are read'
        faults.append(Fault('warning', 'mask of more than 8 bits', rule.split, str(path), words))
    if not faults and not counts.any():
        words = f'all {values.size} pixels are ignored: nothing is learnt from it'
        faults.append(Fault('warning', 'mask without a class', rule.split, str(path), words))
    indexed = str(path) if palette and not is_own(palette, found, rule) else None
    return Found(None, counts, ignored, faults, indexed)


def is_own(palette: Sequence[int], values: Iterable[int | float], rule: Rule) -> bool:
    """Whether a file's palette has the colours of the data set for the values that are classes.

    Args:
        palette: R, G, B, R, G, B ... of the file.
        values: Those that occur in it.
        rule: How they are read.
    """
    labels = {int(value): int(rule.table[int(value)]) for value in values}
    return all(
        list(palette[3 * value : 3 * value + 3]) == list(rule.palette[label])
        for value, label in labels.items()
        if label < len(rule.palette) and label not in rule.ignored
    )


def error_in(kind: str, split: str, file: Path | str, value: str) -> Fault:
    """A fault that training goes wrong on."""
    return Fault('error', kind, split, str(file), value)
