"""The first tab as plain functions of a picture and what a model found in it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image

from ..instance_pictures import draw_instances
from ..instances import Instances
from ..pictures import Palette, overlay

MIN_SIDE, MAX_SIDE = 640, 2000  # of a picture on the page
Row = list[str | int | float]


class Model(Protocol):
    """What the page needs of a model: names, colours and a result for an RGB picture.

    The result is a class number for each pixel, (H, W), or ``Instances``.
    """

    classes: Sequence[str]
    palette: Palette

    def __call__(self, picture: np.ndarray) -> Any:
        """The result; see above."""


class Look(NamedTuple):
    """A picture and what was found in it, in a size that fits on a page.

    Attributes:
        picture: RGB, (h, w, 3), uint8.
        found: Class numbers, (h, w), or objects in pixels of ``picture``, the most certain first.
        pixels: Of each class, or in the mask of each object, in the picture's own size; None for
            objects without masks.
        total: Pixels of the picture in its own size.
        scale: Pixels of ``picture`` for one of the picture itself, along each side.
    """

    picture: np.ndarray
    found: np.ndarray | Instances
    pixels: np.ndarray | None
    total: int
    scale: float


def named(error: Exception, path: Path) -> str:
    """The message of an error, with a file's name in place of where the upload was put."""
    return str(error).replace(str(path), path.name)


def growth(picture: np.ndarray) -> int:
    """How often a small picture, (H, W, 3), is to be enlarged, a whole number; 1 for others.

    The page itself does not: what is clicked on would not be found.
    """
    return max(1, MIN_SIDE // max(picture.shape[:2]))


def enlarged(picture: np.ndarray, factor: int) -> np.ndarray:
    """A picture with ``factor`` times as many rows and columns, interpolated."""
    height, width = (factor * side for side in picture.shape[:2])
    image = Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image)


def take(picture: np.ndarray, found: np.ndarray | Instances, classes: int) -> Look:
    """Keep what redrawing needs, so that neither the model nor large arrays are needed again.

    Args:
        picture: RGB, (H, W, 3), uint8.
        found: Class numbers, (H, W), or objects.
        classes: Number of classes.
    """
    grow, step = growth(picture), -(-max(picture.shape[:2]) // MAX_SIDE)
    total = picture.shape[0] * picture.shape[1]

    def fit(values: np.ndarray) -> np.ndarray:  # (..., H, W)
        return values[..., ::step, ::step].repeat(grow, -2).repeat(grow, -1)

    shown, scale = enlarged(picture[::step, ::step], grow), grow / step
    if not isinstance(found, Instances):
        known = found[(found >= 0) & (found < classes)]
        return Look(shown, fit(found), np.bincount(known, minlength=classes), total, scale)
    masks = None if found.masks is None else fit(found.masks)
    pixels = None if found.masks is None else found.masks.sum((1, 2))
    objects = Instances(found.boxes * scale, found.labels, found.scores, masks)
    return Look(shown, objects, pixels, total, scale)


def draw(
    look: Look, model: Model, opacity: float, score: float = 0.0, only: int | None = None
) -> np.ndarray:
    """The overlay.

    Args:
        look: Picture and result.
        model: For names and colours.
        opacity: Share of the colour, 0 to 1.
        score: Objects less certain are left out.
        only: Class, or number of the object, to draw alone; None for all.

    Returns:
        RGB picture, uint8.
    """
    if isinstance(look.found, Instances):
        shown = look.found.above(score) if only is None else one_of(look.found, only)
        return draw_instances(look.picture, shown, model.classes, model.palette, opacity)
    labels = look.found
    if only is not None:
        labels = np.where(labels == only, labels, len(model.palette))  # which shows the picture
    return overlay(look.picture, labels, model.palette, opacity)


def one_of(found: Instances, number: int) -> Instances:
    """One object alone."""
    keep = slice(number, number + 1)
    masks = None if found.masks is None else found.masks[keep]
    scores = None if found.scores is None else found.scores[keep]
    return Instances(found.boxes[keep], found.labels[keep], scores, masks)


def swatch(color: Sequence[int]) -> str:
    """A patch of colour, as HTML."""
    red, green, blue = (int(part) for part in color)
    style = f'background:rgb({red},{green},{blue});border:1px solid #888;'
    return f'<span style="{style}display:inline-block;width:2em;height:1em"></span>'


def class_rows(look: Look, model: Model) -> list[Row]:
    """Number, colour, name, pixels and per cent of the classes present, the largest first."""
    assert look.pixels is not None
    order = np.argsort(-look.pixels, kind='stable')
    return [
        [
            int(number),
            swatch(model.palette[number]),
            model.classes[number].strip(),
            int(look.pixels[number]),
            round(100 * int(look.pixels[number]) / look.total, 2),
        ]
        for number in order
        if look.pixels[number]
    ]


def object_rows(look: Look, model: Model, score: float) -> list[Row]:
    """Number, colour, name, score in per cent, box and mask of the objects found.

    Args:
        look: Picture and objects.
        model: For names and colours.
        score: Objects less certain are left out.

    Returns:
        Boxes as 'left, top, width x height' and masks in pixels of the picture's own size; '' for
        the mask where only boxes are known.
    """
    found = look.found
    assert isinstance(found, Instances)
    assert found.scores is not None
    rows: list[Row] = []
    for number in np.flatnonzero(found.scores >= score):
        left, top, right, bottom = (round(float(x) / look.scale) for x in found.boxes[number])
        label = found.labels[number]
        rows.append(
            [
                int(number),
                swatch(model.palette[label]),
                model.classes[label].strip(),
                round(100 * float(found.scores[number]), 1),
                f'{left}, {top}, {right - left} x {bottom - top}',
                '' if look.pixels is None else int(look.pixels[number]),
            ]
        )
    return rows
