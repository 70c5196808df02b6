"""Procedural street scenes for demos and tests: one seed, one picture with labels and instances.

The scenes need no download and are small enough to train a tiny model on a CPU in minutes. Every
class has a texture and a colour range of its own, as real things have: told apart by outline alone,
they would take a model from scratch far longer to learn. Things are at least two patches of
16 pixels wide.
"""

from typing import NamedTuple

import numpy as np

from . import textures as tx
from .canvas import Canvas, Instance, pixel_grid
from .scenery import asphalt, draw_building, draw_tree, grass, sky, water
from .things import THINGS

#: Raise it when the same seed gives other pixels than before: old sets then count as different.
VERSION = 1

STUFF_CLASSES = ('sky', 'grass', 'road', 'water', 'building', 'tree')
THING_CLASSES = tuple(THINGS)
CLASSES = STUFF_CLASSES + THING_CLASSES
PALETTE = (
    (120, 180, 235),
    (150, 200, 80),
    (110, 110, 115),
    (10, 110, 130),
    (225, 190, 145),
    (20, 80, 40),
    (220, 30, 35),
    (150, 100, 55),
    (250, 210, 30),
    (125, 40, 170),
    (255, 125, 10),
    (245, 120, 185),
)

SIZES = ((160, 160), (128, 224), (224, 144))  # (h, w)


class Scene(NamedTuple):
    """A picture (H,W,3) RGB uint8, a label map (H,W) uint8 and the things in it.

    Labels follow ADE20K: 0 is unlabelled, k stands for ``CLASSES[k - 1]`` (``reduce_zero_label``).
    """

    image: np.ndarray
    label: np.ndarray
    instances: list[Instance]


def _label(name: str) -> int:
    return CLASSES.index(name) + 1


def _paint_lake(rng: np.random.Generator, canvas: Canvas, horizon: float) -> float:
    """A lake below the horizon; returns the row of its near shore."""
    y, x = pixel_grid(canvas.label.shape)
    shore = horizon + canvas.label.shape[0] / 160 * tx.uniform(rng, 30, 40)
    bend = tx.wave(x / tx.uniform(rng, 90, 200) + tx.uniform(rng, 0, 1))
    lake = np.maximum(horizon + 2 - y, y - (shore + 4 * bend))
    canvas.fill(water(rng, canvas.label.shape), tx.cover(lake), _label('water'))
    return shore


def _paint_road(rng: np.random.Generator, canvas: Canvas, start: float) -> None:
    """A road below row ``start``, towards the viewer or across the picture."""
    height, width = canvas.label.shape
    y, x = pixel_grid(canvas.label.shape)
    if rng.random() < 0.45:
        near = width * tx.uniform(rng, 0.3, 0.7)
        far = near + tx.uniform(rng, -20, 20)
        depth = (y - start - 4) / (height - start - 4)  # 0 far, 1 near
        across = x - (far + (near - far) * depth)
        half = 12 + 34 * depth
        road = np.maximum(np.abs(across) - half, start + 4 - y)
        gap = (0.45 - np.abs(tx.wave(depth * 1.8))) * 10
        stripe = np.maximum(np.abs(across) - (1 + 2 * depth), gap)
        kerb = np.abs(np.abs(across) - half) - 1.0
    else:
        thick = height / 160 * tx.uniform(rng, 34, 42)
        free = height - start - thick
        top = start + free * (1.0 if rng.random() < 0.5 else 0.55)
        row = y - top - 4 * tx.wave(x / tx.uniform(rng, 90, 200) + tx.uniform(rng, 0, 1))
        road = np.maximum(-row, row - thick)
        stripe = np.maximum(np.abs(row - thick / 2) - 1.5, 3 - np.abs(tx.wave(x / 36)) * 9)
        kerb = np.minimum(np.abs(row), np.abs(row - thick)) - 1.2
    paint = asphalt(rng, canvas.label.shape)
    paint = tx.mix(paint, tx.colour((0.93, 0.91, 0.84)), tx.cover(stripe))
    paint = tx.mix(paint, tx.colour((0.68, 0.67, 0.65)), tx.cover(kerb))
    canvas.fill(paint, tx.cover(road), _label('road'))


def _paint_land(rng: np.random.Generator, canvas: Canvas, horizon: float) -> float:
    """Sky and meadow, often a lake and a road; returns the row where things may stand from."""
    shape = canvas.label.shape
    y, x = pixel_grid(shape)
    canvas.fill(sky(rng, shape), np.ones(shape, np.float32), _label('sky'))
    hills = horizon + 3 * tx.wave(x / tx.uniform(rng, 90, 200) + tx.uniform(rng, 0, 1))
    canvas.fill(grass(rng, shape), tx.cover(hills - y), _label('grass'))
    start = _paint_lake(rng, canvas, horizon) if rng.random() < 0.6 else horizon
    if rng.random() < 0.7:
        _paint_road(rng, canvas, start)
    return start


def _plant(rng: np.random.Generator, canvas: Canvas, horizon: float, start: float) -> None:
    """Buildings on the horizon and trees on the near side of the lake."""
    width = canvas.label.shape[1]
    for _ in range((0, 1, 1, 2)[tx.pick(rng, 4)]):
        middle, foot = int(tx.uniform(rng, 0, width)), int(horizon + tx.uniform(rng, 3, 6))
        sprite = draw_building(rng, tx.uniform(rng, 42, 66))
        canvas.stamp(sprite, foot, middle, _label('building'))
    for _ in range((0, 1, 1, 2, 2)[tx.pick(rng, 5)]):
        size = tx.uniform(rng, 46, 66)
        middle, foot = int(tx.uniform(rng, 8, width - 8)), int(start + tx.uniform(rng, 6, 20))
        canvas.shadow(foot, middle, size * 0.35)
        canvas.stamp(draw_tree(rng, size), foot, middle, _label('tree'))


def _place_things(rng: np.random.Generator, canvas: Canvas, horizon: float, start: float) -> None:
    """None in some scenes, else two to five, sometimes two of a class; the far ones first."""
    height, width = canvas.label.shape
    count = (0, 2, 3, 3, 4, 4, 4, 5, 5, 5)[tx.pick(rng, 10)]
    names = [name for _, name in sorted((float(rng.random()), n) for n in THING_CLASSES)][:count]
    if count > 2 and rng.random() < 0.35:
        names[-1] = names[0]
    plan = []
    for name in names:
        first, last = (start + 8, height) if name != 'balloon' else (height * 0.38, horizon)
        plan.append((tx.uniform(rng, first, last), name))
    for bottom, name in sorted(plan):
        # a car is half as high as it is long, a star fills a third of its square
        longer = {'car': 1.35, 'star': 1.2}.get(name, 1.0)
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


def _smear(rng: np.random.Generator, canvas: Canvas) -> None:
    """Now and then a milky smear on the lens, which nobody could label: 0."""
    if rng.random() >= 0.15:
        return
    shape = height, width = canvas.label.shape
    y, x = pixel_grid(shape)
    blot = tx.disc(
        y - height * tx.uniform(rng, 0, 1),
        x - width * tx.uniform(rng, 0, 1),
        tx.uniform(rng, 20, 34),
        tx.uniform(rng, 20, 34),
    )
    blot = blot + (tx.noise(rng, shape, 16, 16) - 0.5) * 12
    mask = blot < 0
    if canvas.hides_too_much(mask):
        return
    canvas.hide(mask)
    milk = tx.smoothstep(0.5 - blot / 10)
    canvas.rgb = tx.mix(canvas.rgb, tx.colour((0.86, 0.84, 0.88)), milk * 0.92)
    canvas.label[mask] = 0


def make_scene(seed: int) -> Scene:
    """Draw the scene of a seed: the same bytes on every machine."""
    rng = np.random.default_rng(seed)
    draw = rng.random()
    height, width = SIZES[0 if draw < 0.84 else 1 if draw < 0.92 else 2]
    canvas = Canvas(height, width)
    horizon = height * tx.uniform(rng, 0.38, 0.48)
    start = _paint_land(rng, canvas, horizon)
    _plant(rng, canvas, horizon, start)
    _place_things(rng, canvas, horizon, start)
    light = tx.uniform(rng, 0.88, 1.06) * tx.jitter(rng, (1, 1, 1), 0.03)
    _smear(rng, canvas)
    image = (np.clip(canvas.rgb * light, 0, 1) * 255 + 0.5).astype(np.uint8)
    image = np.ascontiguousarray(image.transpose(1, 2, 0))  # (3, H, W) -> (H, W, 3)
    return Scene(image, canvas.label, canvas.instances)
