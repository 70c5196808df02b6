"""Procedural street scenes for demos and tests: one seed, one picture with labels and instances.

The scenes need no download and are small enough to train a tiny model on a CPU in minutes. Every
class has a texture and a colour range of its own, as real things have: told apart by outline alone,
they would take a model from scratch far longer to learn. Things are at least two patches of
16 pixels wide.
"""
from typing import List, NamedTuple, Optional, Tuple

import numpy as np

from . import textures as tx
from .things import THINGS, Sprite, draw_building, draw_tree

#: Raise it when the same seed gives other pixels than before: old sets then count as different.
VERSION = 1

STUFF_CLASSES = ('sky', 'grass', 'road', 'water', 'building', 'tree')
THING_CLASSES = tuple(THINGS)
CLASSES = STUFF_CLASSES + THING_CLASSES
PALETTE = ((120, 180, 235), (150, 200, 80), (110, 110, 115), (10, 110, 130), (225, 190, 145),
           (20, 80, 40), (220, 30, 35), (150, 100, 55), (250, 210, 30), (125, 40, 170),
           (255, 125, 10), (245, 120, 185))

MIN_SIDE = 32  # px: two patches of 16
MIN_VISIBLE = 0.6  # share of a thing that must not be hidden
SIZES = ((160, 160), (128, 224), (224, 144))  # (h, w)


class Instance(NamedTuple):
    """One thing: its label in the label map (class index + 1) and the mask (H,W) of what is seen."""
    label: int
    mask: np.ndarray


class Scene(NamedTuple):
    """A picture (H,W,3) RGB uint8, a label map (H,W) uint8 and the things in it.

    Labels follow ADE20K: 0 is unlabelled, k stands for ``CLASSES[k - 1]`` (``reduce_zero_label``).
    """
    image: np.ndarray
    label: np.ndarray
    instances: List[Instance]


def bounding_box(mask: np.ndarray) -> Tuple[int, int, int, int]:
    """Column, row, width and height of a mask's True pixels; zeros where there is none."""
    rows, cols = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return 0, 0, 0, 0
    left, top = int(cols[0]), int(rows[0])
    return left, top, int(cols[-1]) - left + 1, int(rows[-1]) - top + 1


class _Canvas:
    """A scene in the making: later strokes hide earlier ones, in the picture and in the masks."""

    def __init__(self, height: int, width: int) -> None:
        self.rgb = np.zeros((height, width, 3), np.float32)
        self.label = np.zeros((height, width), np.uint8)
        self.instances: List[Instance] = []
        self.whole: List[int] = []  # pixels of each thing before anything hid it

    def fill(self, paint: np.ndarray, alpha: np.ndarray, label: int) -> None:
        """Lays ``paint`` (H,W,3) over the whole picture with ``alpha`` (H,W)."""
        self.rgb = tx.mix(self.rgb, paint, alpha)
        self.label[alpha >= 0.5] = label

    def _window(self, sprite: Sprite, bottom: int, middle: int
                ) -> Optional[Tuple[Tuple[slice, slice], Tuple[slice, slice]]]:
        """Where the sprite lies in the picture and which part of it that is."""
        height, width = sprite.alpha.shape
        top, left = bottom - height, middle - width // 2
        y0, x0 = max(top, 0), max(left, 0)
        y1, x1 = min(bottom, self.label.shape[0]), min(left + width, self.label.shape[1])
        if y0 >= y1 or x0 >= x1:
            return None
        return ((slice(y0, y1), slice(x0, x1)), (slice(y0 - top, y1 - top),
                                                 slice(x0 - left, x1 - left)))

    def hides_too_much(self, mask: np.ndarray) -> bool:
        """Whether something drawn over ``mask`` (H,W) would leave too little of an earlier thing."""
        for instance, whole in zip(self.instances, self.whole):
            rest = instance.mask & ~mask
            if rest.sum() < MIN_VISIBLE * whole or min(bounding_box(rest)[2:]) < MIN_SIDE:
                return True
        return False

    def hide(self, mask: np.ndarray) -> None:
        """Takes ``mask`` (H,W) away from all earlier things."""
        self.instances = [Instance(i.label, i.mask & ~mask) for i in self.instances]

    def stamp(self, sprite: Sprite, bottom: int, middle: int, label: int) -> None:
        """Draws upright stuff whose foot stands on row ``bottom`` around column ``middle``."""
        window = self._window(sprite, bottom, middle)
        if window is None:
            return
        here, part = window
        alpha = sprite.alpha[part]
        self.rgb[here] = tx.mix(self.rgb[here], sprite.rgb[part], alpha)
        self.label[here][alpha >= 0.5] = label

    def place(self, sprite: Sprite, bottom: int, middle: int, label: int) -> bool:
        """Draws a thing, unless it or an earlier one would be seen too little; says if it did."""
        window = self._window(sprite, bottom, middle)
        if window is None:
            return False
        here, part = window
        mask = np.zeros(self.label.shape, bool)
        mask[here] = sprite.alpha[part] >= 0.5
        whole = int((sprite.alpha >= 0.5).sum())
        if (mask.sum() < 0.85 * whole or min(bounding_box(mask)[2:]) < MIN_SIDE or
                self.hides_too_much(mask)):
            return False
        self.hide(mask)
        self.stamp(sprite, bottom, middle, label)
        self.instances.append(Instance(label, mask))
        self.whole.append(whole)
        return True

    def shadow(self, bottom: int, middle: int, half_w: float) -> None:
        """Darkens a flat ellipse around a foot; labels stay."""
        height, width = self.label.shape
        y = np.arange(height, dtype=np.float32)[:, None] - (bottom - 2)
        x = np.arange(width, dtype=np.float32)[None, :] - (middle + half_w * 0.2)
        dark = tx.smoothstep(-tx.disc(y, x, half_w * 0.28, half_w * 1.15) / (half_w * 0.2))
        self.rgb = self.rgb * (1 - 0.5 * dark)[..., None]


def _label(name: str) -> int:
    return CLASSES.index(name) + 1


def _paint_ground(rng: np.random.Generator, canvas: _Canvas, horizon: float) -> None:
    """Sky above, below it a lake, meadow and road in varying order."""
    shape = height, width = canvas.label.shape
    y = np.arange(height, dtype=np.float32)[:, None]
    x = np.arange(width, dtype=np.float32)[None, :]
    unit = height / 160
    bend = tx.wave(x / tx.uniform(rng, 90, 200) + tx.uniform(rng, 0, 1))
    everywhere = np.ones(shape, np.float32)
    canvas.fill(tx.sky(rng, shape), everywhere, _label('sky'))
    canvas.fill(tx.grass(rng, shape), tx.cover(horizon + 3 * bend - y), _label('grass'))

    start = horizon
    if rng.random() < 0.6:
        start = horizon + unit * tx.uniform(rng, 28, 38)
        lake = np.maximum(horizon + 2 - y, y - (start + 4 * bend))
        canvas.fill(tx.water(rng, shape), tx.cover(lake), _label('water'))
    if rng.random() < 0.7:
        asphalt = tx.asphalt(rng, shape)
        if rng.random() < 0.45:  # leads away from the viewer
            middle = width * tx.uniform(rng, 0.3, 0.7)
            goal = middle + tx.uniform(rng, -20, 20)
            depth = (y - start - 4) / (height - start - 4)
            across = x - (goal + (middle - goal) * depth)
            half = 12 + 34 * depth
            road = np.maximum(np.abs(across) - half, start + 4 - y)
            stripe = np.maximum(np.abs(across) - (1 + 2 * depth), 0.5 - np.abs(
                tx.wave(depth * 2.5 + 0 * x)) * 4)
            kerb = np.abs(np.abs(across) - half) - 1.0
        else:  # crosses the picture
            thick = unit * tx.uniform(rng, 34, 42)
            room = height - start - thick
            top = start + room * (1.0 if rng.random() < 0.4 or start > horizon else 0.5)
            row = y - top - 2 * bend
            road = np.maximum(-row, row - thick)
            stripe = np.maximum(np.abs(row - thick / 2) - 1.5, 3 - np.abs(tx.wave(x / 36)) * 9)
            kerb = np.minimum(np.abs(row), np.abs(row - thick)) - 1.2
        asphalt = tx.mix(asphalt, tx.colour((0.93, 0.91, 0.84)), tx.cover(stripe))
        asphalt = tx.mix(asphalt, tx.colour((0.68, 0.67, 0.65)), tx.cover(kerb + 0 * road))
        canvas.fill(asphalt, tx.cover(road), _label('road'))


def _paint_upright_stuff(rng: np.random.Generator, canvas: _Canvas, horizon: float) -> None:
    """Buildings on the horizon and trees in front of them."""
    width = canvas.label.shape[1]
    for _ in range((0, 1, 1, 2)[tx.pick(rng, 4)]):
        middle, foot = int(tx.uniform(rng, 0, width)), int(horizon + tx.uniform(rng, 3, 8))
        sprite = draw_building(rng, tx.uniform(rng, 42, 66))
        canvas.stamp(sprite, foot, middle, _label('building'))
    for _ in range((0, 1, 1, 2, 2)[tx.pick(rng, 5)]):
        size = tx.uniform(rng, 46, 66)
        middle, foot = int(tx.uniform(rng, 8, width - 8)), int(horizon + tx.uniform(rng, 6, 30))
        canvas.shadow(foot, middle, size * 0.35)
        canvas.stamp(draw_tree(rng, size), foot, middle, _label('tree'))


def _place_things(rng: np.random.Generator, canvas: _Canvas, horizon: float) -> None:
    """None in some scenes, else two to five, the far ones first, different classes first."""
    height, width = canvas.label.shape
    count = (0, 2, 3, 3, 4, 4, 4, 5, 5, 5)[tx.pick(rng, 10)]
    order = sorted((float(rng.random()), name) for name in THING_CLASSES)
    plan = []
    for _, name in order[:count]:
        low, high = (0.42, 0.75) if name == 'balloon' else (0.0, 1.0)
        first, last = (height * 0.32, horizon + 12) if name == 'balloon' else (horizon + 16, height)
        plan.append((first + (last - first) * tx.uniform(rng, low, high), name))
    for bottom, name in sorted(plan):
        longer = 1.35 if name == 'car' else 1.0
        sprite = THINGS[name](rng, longer * tx.uniform(rng, 42, 66))
        half_w = sprite.alpha.shape[1] / 2
        for _ in range(12):
            middle = int(tx.uniform(rng, half_w * 0.8, width - half_w * 0.8))
            foot = min(int(bottom + tx.uniform(rng, -6, 6)), height)
            before = canvas.rgb
            if name != 'balloon':
                canvas.shadow(foot, middle, half_w)
            if canvas.place(sprite, foot, middle, _label(name)):
                break
            canvas.rgb = before


def _smear(rng: np.random.Generator, canvas: _Canvas) -> None:
    """Now and then a milky smear on the lens, which nobody could label: 0."""
    height, width = canvas.label.shape
    if rng.random() >= 0.15:
        return
    y = np.arange(height, dtype=np.float32)[:, None] - height * tx.uniform(rng, 0, 1)
    x = np.arange(width, dtype=np.float32)[None, :] - width * tx.uniform(rng, 0, 1)
    blot = tx.disc(y, x, tx.uniform(rng, 20, 34), tx.uniform(rng, 20, 34))
    blot = blot + (tx.noise(rng, (height, width), 16, 16) - 0.5) * 12
    mask = blot < 0
    if canvas.hides_too_much(mask):
        return
    canvas.hide(mask)
    milk = tx.smoothstep(0.5 - blot / 10)
    canvas.rgb = tx.mix(canvas.rgb, tx.colour((0.86, 0.84, 0.88)), milk * 0.92)
    canvas.label[mask] = 0


def make_scene(seed: int) -> Scene:
    """Draws the scene of a seed: the same bytes on every machine."""
    rng = np.random.default_rng(seed)
    draw = rng.random()
    height, width = SIZES[0 if draw < 0.84 else 1 if draw < 0.92 else 2]
    canvas = _Canvas(height, width)
    horizon = height * tx.uniform(rng, 0.38, 0.48)
    _paint_ground(rng, canvas, horizon)
    _paint_upright_stuff(rng, canvas, horizon)
    _place_things(rng, canvas, horizon)
    light = tx.uniform(rng, 0.88, 1.06) * tx.jitter(rng, (1, 1, 1), 0.03)
    _smear(rng, canvas)
    image = (np.clip(canvas.rgb * light, 0, 1) * 255 + 0.5).astype(np.uint8)
    return Scene(image, canvas.label, canvas.instances)
