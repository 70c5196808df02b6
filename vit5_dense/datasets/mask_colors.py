"""Masks that show classes by colours, as class numbers by a table of colours."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from ..errors import UserError
from ..pictures import PictureError
from .color_table import IGNORE, UNKNOWN, ColorTable, packed

SUFFIXES = ('.bmp', '.gif', '.png', '.tif', '.tiff')  # that keep colours; JPEG changes them
MODES = ('1', 'L', 'LA', 'P', 'PA', 'RGB', 'RGBA')  # Pillow's, 8 bits a channel


class Mask(NamedTuple):
    """A mask from a file.

    Attributes:
        labels: Class numbers, 255 for "ignore", (H, W), uint8.
        transparent: Whether some pixels are not opaque, which changes nothing.
    """

    labels: np.ndarray
    transparent: bool


def bits(path: Path, file: Image.Image) -> int:
    """Bits of a channel as stored: Pillow hands 16-bit RGB over as 8-bit."""
    if file.format == 'PNG':
        with path.open('rb') as stored:
            return stored.read(25)[24]  # after signature, head of IHDR, width and height
    return max(np.atleast_1d(getattr(file, 'tag_v2', {}).get(258, 8)))  # TIFF's BitsPerSample


def open_mask(path: Path, indices: bool) -> tuple[np.ndarray, bool]:
    """A mask's colours or indices, and whether some pixels are not opaque.

    Args:
        path: The file.
        indices: Take a palette's indices.

    Returns:
        RGB, (H, W, 3), or indices, (H, W), uint8; and the answer.

    Raises:
        UserError: If it cannot be read whole, has 16 bits or, for indices, no palette.
    """
    try:
        with Image.open(path) as file:
            mode, depth = file.mode, bits(path, file)
            if depth > 8 or mode not in MODES:
                raise UserError(
                    f'{path} has {depth} bits a channel (mode {mode}): masks must be 8-bit '
                    'palette, gray or RGB pictures'
                )
            if not indices:
                rgba = np.asarray(file.convert('RGBA'))
                return rgba[..., :3], bool((rgba[..., 3] < 255).any())
            if mode != 'P':
                raise UserError(f'{path} (mode {mode}) has no palette: leave out --indices')
            return np.asarray(file), False
    except UserError:
        raise
    except Exception as error:  # decoders raise anything on a broken file
        raise PictureError(f'{path} cannot be read: {error}') from error


def require_known(
    path: Path, values: np.ndarray, unknown: np.ndarray, table: ColorTable, remedy: str
) -> None:
    """Refuse a mask with a colour or an index that no class has.

    Args:
        path: Its file.
        values: Packed colours, or indices, (H, W).
        unknown: Where there is no class for them, (H, W), bool.
        table: For the message.
        remedy: What the user can do.

    Raises:
        UserError: With the first such pixel in reading order and how many are like it.
    """
    if not unknown.any():
        return
    y, x = (int(i) for i in np.unravel_index(unknown.argmax(), unknown.shape))
    value = int(values[y, x])
    what = f'index {value}'
    if values.dtype != np.uint8:
        what = f'colour {[value >> 16, value >> 8 & 255, value & 255]}'
    like, others = int((values == value).sum()), len(np.unique(values[unknown])) - 1
    more = f' ({others} more such values)' if others else ''
    raise UserError(
        f'{path}: {what} is of no class in {table.path}: {like} pixels, the first at x {x}, y {y}, '
        f'counted from 0{more}: {remedy}'
    )


def read_mask(path: Path, table: ColorTable, lookup: np.ndarray, indices: bool = False) -> Mask:
    """Read a mask.

    Args:
        path: A palette, gray or RGB picture. Of an animation the first frame is taken.
        table: Classes and colours.
        lookup: ``table.lookup()``, made once for all masks.
        indices: Take a palette's indices as class numbers.

    Raises:
        UserError: If it cannot be read, has 16 bits, or a colour or index that no class has.
    """
    values, transparent = open_mask(path, indices)
    if indices:
        unknown = (values >= len(table.classes)) & (values != IGNORE)
        remedy = 'name all classes up to it, or leave out --indices'
        require_known(path, values, unknown, table, remedy)
        return Mask(values, transparent)
    colors = packed(values)
    labels = lookup[colors]
    remedy = 'give the colour a class, or list it under "ignore"'
    require_known(path, colors, labels == UNKNOWN, table, remedy)
    return Mask(labels.astype(np.uint8), transparent)


def plan(folder: Path, out: Path) -> dict[Path, Path]:
    """The label file of each mask below a folder; subfolders stay.

    Args:
        folder: Of masks.
        out: Of label files, beside it or above it.

    Raises:
        UserError: If there is no mask, two masks would become one file, or ``out`` is among them.
    """
    if not folder.is_dir():
        raise UserError(f'{folder} is no folder of masks')
    if out.resolve().is_relative_to(folder.resolve()):
        raise UserError(f'--out {out} is in {folder}, among the masks: choose another folder')
    files = (path for path in folder.rglob('*') if path.is_file())
    masks = sorted(path for path in files if path.suffix.lower() in SUFFIXES)
    if not masks:
        raise UserError(f'{folder} has no mask ({", ".join(SUFFIXES)})')
    targets: dict[Path, Path] = {}
    for mask in masks:
        target = out / mask.relative_to(folder).with_suffix('.png')
        other = targets.setdefault(target, mask)
        if other != mask:
            raise UserError(f'{other} and {mask} would both become {target}')
    return {mask: target for target, mask in targets.items()}


def require_free(targets: Sequence[Path]) -> None:
    """Refuse to write where files are.

    Raises:
        UserError: With the first of them.
    """
    taken = [path for path in targets if path.exists()]
    if taken:
        raise UserError(
            f'{taken[0]} exists, and {len(taken) - 1} more of {len(targets)} files: add '
            '--overwrite, or choose another --out'
        )
