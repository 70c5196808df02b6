"""The picture of an embedded scene while it is painted, with its labels and things."""

from typing import NamedTuple

import numpy as np

from . import textures as tx
from .textures import Sprite

MIN_SIDE = 32  # px: two patches of 16
MIN_VISIBLE = 0.6  # share of a thing that later strokes must leave
MIN_INSIDE = 0.85  # share of a thing that must lie in the picture and not be cut by its edge

Window = tuple[slice, slice]


class Instance(NamedTuple):
    """One thing: its label in the label map (class index + 1) and the mask (H,W) of what shows."""

    label: int
    mask: np.ndarray


def pixel_grid(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows (h,1) and columns (1,w) counted from the upper left corner."""
    y, x = (np.arange(length, dtype=np.float32) for length in shape)
    return y[:, None], x[None, :]


def bounding_box(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Column, row, width and height of a mask's True pixels; zeros where there is none."""
    rows, cols = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return 0, 0, 0, 0
    left, top = int(cols[0]), int(rows[0])
    return left, top, int(cols[-1]) - left + 1, int(rows[-1]) - top + 1


class Canvas:
    """A scene in the making: later strokes hide earlier ones, in the picture and in the masks."""

    def __init__(self, height: int, width: int) -> None:
        self.rgb: np.ndarray = np.zeros((3, height, width), np.float32)
        self.label = np.zeros((height, width), np.uint8)
        self.instances: list[Instance] = []
        self.whole: list[int] = []  # pixels of each thing before anything hid it

    def fill(self, paint: np.ndarray, alpha: np.ndarray, label: int) -> None:
        """Lay ``paint`` (3,H,W) over the whole picture with ``alpha`` (H,W)."""
        self.rgb = tx.mix(self.rgb, paint, alpha)
        self.label[alpha >= 0.5] = label

    def _window(self, sprite: Sprite, bottom: int, middle: int) -> tuple[Window, Window]:
        """Where the sprite lies in the picture, and which part of the sprite that is."""
        height, width = sprite.alpha.shape
        top, left = bottom - height, middle - width // 2
        y0, x0 = max(top, 0), max(left, 0)
        y1 = max(y0, min(bottom, self.label.shape[0]))
        x1 = max(x0, min(left + width, self.label.shape[1]))
        here = (slice(y0, y1), slice(x0, x1))
        return here, (slice(y0 - top, y1 - top), slice(x0 - left, x1 - left))

    def hides_too_much(self, mask: np.ndarray) -> bool:
        """Whether drawing over ``mask`` (H,W) would leave too little of an earlier thing."""
        for instance, whole in zip(self.instances, self.whole, strict=True):
            rest = instance.mask & ~mask
            if rest.sum() < MIN_VISIBLE * whole or min(bounding_box(rest)[2:]) < MIN_SIDE:
                return True
        return False

    def hide(self, mask: np.ndarray) -> None:
        """Take ``mask`` (H,W) away from all earlier things."""
        self.instances = [Instance(i.label, i.mask & ~mask) for i in self.instances]

    def stamp(self, sprite: Sprite, bottom: int, middle: int, label: int) -> None:
        """Draw upright stuff whose foot stands on row ``bottom`` around column ``middle``."""
        here, part = self._window(sprite, bottom, middle)
        alpha = sprite.alpha[part]
        below = self.rgb[:, here[0], here[1]]
        below[...] = tx.mix(below, sprite.rgb[:, part[0], part[1]], alpha)
        self.label[here][alpha >= 0.5] = label

    def place(self, sprite: Sprite, bottom: int, middle: int, label: int) -> bool:
        """Draw a thing, unless it or an earlier one would be seen too little; says if it did."""
        here, part = self._window(sprite, bottom, middle)
        mask = np.zeros(self.label.shape, bool)
        mask[here] = sprite.alpha[part] >= 0.5
        whole = int((sprite.alpha >= 0.5).sum())
        if (
            mask.sum() < MIN_INSIDE * whole
            or min(bounding_box(mask)[2:]) < MIN_SIDE
            or self.hides_too_much(mask)
        ):
            return False
        self.hide(mask)
        self.stamp(sprite, bottom, middle, label)
        self.instances.append(Instance(label, mask))
        self.whole.append(whole)
        return True

    def shadow(self, bottom: int, middle: int, half_w: float) -> None:
        """Darken a flat ellipse around a foot; labels stay."""
        y, x = pixel_grid(self.label.shape)
        spot = tx.disc(y - (bottom - 2), x - (middle + half_w * 0.2), half_w * 0.28, half_w * 1.15)
        self.rgb = self.rgb * (1 - 0.5 * tx.smoothstep(-spot / (half_w * 0.2)))
