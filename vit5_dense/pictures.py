"""Pictures in and out: any file to RGB, label maps to colour, overlays with a legend."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError

from .errors import UserError

SUFFIXES = ('.bmp', '.gif', '.jpeg', '.jpg', '.png', '.ppm', '.tif', '.tiff', '.webp')
Palette = Sequence[Sequence[int]]
MAX_OVERLAY = 8000
STRIP = 256
TO_BYTES = 'write 8 bits a channel first, as with gdal_translate -ot Byte -scale IN OUT'


class PictureError(UserError):
    """A file that is no picture, or a broken one."""


def read_picture(path: Path) -> np.ndarray:
    """Read a picture as a person sees it.

    EXIF orientation is applied. Gray, palette, alpha, CMYK and 16-bit pictures become 8-bit RGB;
    alpha is dropped, as OpenCV drops it when models are trained; 16 bits are divided by 256. Of an
    animation the first frame is taken. Decimal numbers are refused: their range is not known.

    Args:
        path: The file.

    Returns:
        RGB picture, (H, W, 3), uint8.

    Raises:
        PictureError: If the file cannot be read whole.
    """
    try:
        with Image.open(path) as file:
            if file.mode == 'F':
                raise ValueError(f'it holds decimal numbers: {TO_BYTES}')
            picture = ImageOps.exif_transpose(file)
            if picture.mode.startswith('I;16') or picture.mode == 'I':
                high = np.asarray(picture).astype(np.int64) // 256
                picture = Image.fromarray(high.clip(0, 255).astype(np.uint8))
            return np.asarray(picture.convert('RGB'))
    except Exception as error:  # decoders raise anything on a broken file
        reason = str(error)
        if isinstance(error, UnidentifiedImageError):
            reason = 'no picture that Pillow knows'
            if path.suffix.lower() in ('.tif', '.tiff'):
                reason += f', such as colours of more than 8 bits or decimal numbers: {TO_BYTES}'
        elif isinstance(error, Image.DecompressionBombError):
            reason += ' tools/infer.py segments larger ones in tiles: --tile 1024'
        raise PictureError(f'{path} cannot be read: {reason}') from error


def colorize(labels: np.ndarray, palette: Palette) -> np.ndarray:
    """Colour of every pixel's class; black where there is none (255 and beyond the palette).

    Args:
        labels: Class numbers, (H, W).
        palette: RGB colour of each class.

    Returns:
        RGB picture, (H, W, 3), uint8.
    """
    colors = np.zeros((max(256, int(labels.max(initial=0)) + 1), 3), np.uint8)
    colors[: len(palette)] = palette
    return colors[labels]


def overlay(
    picture: np.ndarray, labels: np.ndarray, palette: Palette, opacity: float = 0.5
) -> np.ndarray:
    """Blend a label map over its picture; unlabelled pixels show the picture.

    Args:
        picture: RGB, (H, W, 3), uint8.
        labels: Class numbers, (H, W).
        palette: RGB colour of each class.
        opacity: Share of the colour, 0 to 1.

    Returns:
        RGB picture, (H, W, 3), uint8.
    """
    mixed = picture * (1 - opacity) + colorize(labels, palette) * opacity
    return np.where((labels < len(palette))[..., None], mixed, picture).astype(np.uint8)


def with_legend(
    picture: np.ndarray, labels: np.ndarray, classes: Sequence[str], palette: Palette
) -> np.ndarray:
    """Append a legend of the classes present, the largest first, with their share of the pixels.

    Args:
        picture: RGB, (H, W, 3), uint8, usually an overlay.
        labels: Class numbers, (H, W).
        classes: Name of each class.
        palette: RGB colour of each class.

    Returns:
        RGB picture with the legend on its right, (H' >= H, W' > W, 3), uint8.
    """
    numbers, counts = np.unique(labels[labels < len(classes)], return_counts=True)
    order = np.argsort(-counts)
    font = ImageFont.load_default(size=13)
    rows = [
        (tuple(palette[numbers[i]]), f'{classes[numbers[i]].strip()} {counts[i] / labels.size:.1%}')
        for i in order
    ]
    width = 36 + int(max((font.getlength(text) for _, text in rows), default=60))
    canvas = Image.new(
        'RGB', (picture.shape[1] + width, max(picture.shape[0], 18 * len(rows) + 8)), 'white'
    )
    canvas.paste(Image.fromarray(picture), (0, 0))
    draw = ImageDraw.Draw(canvas)
    left = picture.shape[1] + 8
    for i, (color, text) in enumerate(rows):
        top = 6 + 18 * i
        draw.rectangle((left, top, left + 12, top + 12), fill=color, outline='black')
        draw.text((left + 20, top - 2), text, fill='black', font=font)
    return np.asarray(canvas)


def save_labels(path: Path, labels: np.ndarray, num_classes: int, offset: int = 0) -> None:
    """Write a label map as PNG, with 8 bits a pixel, or 16 for more than 256 values.

    Args:
        path: The file.
        labels: Class numbers, (H, W).
        num_classes: Number of classes.
        offset: Added to class numbers: 1 where files count classes from 1.
    """
    dtype = np.uint8 if num_classes + offset <= 256 else np.uint16
    Image.fromarray((labels + offset).astype(dtype)).save(path)


def save_picture(path: Path, picture: np.ndarray) -> None:
    """Write an RGB picture, (H, W, 3), uint8, and the folder for it if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path)


def save_result(
    out: Path,
    name: str,
    picture: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    palette: Palette,
    opacity: float = 0.5,
    label_offset: int = 0,
) -> None:
    """Write ``out/overlays/NAME.png`` with a legend and ``out/labels/NAME.png``.

    The overlay of a picture with a side above 8000 pixels is reduced by a whole number to fit that;
    labels keep their size.

    Args:
        out: Folder; made if need be.
        name: File name without suffix.
        picture: RGB, (H, W, 3), uint8.
        labels: Class numbers, (H, W).
        classes: Name of each class.
        palette: RGB colour of each class.
        opacity: Share of the colour in the overlay, 0 to 1.
        label_offset: Added to class numbers in the label file.
    """
    (out / 'labels').mkdir(parents=True, exist_ok=True)
    save_labels(out / 'labels' / f'{name}.png', labels, len(classes), label_offset)
    step = -(-max(labels.shape) // MAX_OVERLAY)
    if step > 1:
        picture = np.asarray(Image.fromarray(picture).reduce(step))
        labels = labels[::step, ::step]
    mixed = np.empty_like(picture)
    for top in range(0, len(labels), STRIP):  # the mixture takes 8 bytes where the result takes 1
        rows = slice(top, top + STRIP)
        mixed[rows] = overlay(picture[rows], labels[rows], palette, opacity)
    save_picture(out / 'overlays' / f'{name}.png', with_legend(mixed, labels, classes, palette))
