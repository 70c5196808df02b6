"""The things of the embedded scenes, each drawn into a window of its own.

A drawer takes the random generator and a size in pixels and returns a sprite.
"""

from collections.abc import Callable

import numpy as np

from . import textures as tx
from .textures import Sprite

# Corners of a plump five-pointed star of radius 1, (y, x), clockwise from the top: the outer ones
# at radius 1, the inner ones at 0.56. Literal numbers, so that no sine is taken at run time.
STAR = (
    (-1.0, 0.0),
    (-0.4531, 0.3292),
    (-0.3090, 0.9511),
    (0.1731, 0.5326),
    (0.8090, 0.5878),
    (0.56, 0.0),
    (0.8090, -0.5878),
    (0.1731, -0.5326),
    (-0.3090, -0.9511),
    (-0.4531, -0.3292),
)


def _turn(rng: np.random.Generator, tilt: float) -> tuple[float, float]:
    """Cosine and sine of a random angle of at most 2 atan(tilt), from a rational formula."""
    t = tx.uniform(rng, -tilt, tilt)
    return (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)


def _maybe_mirror(rng: np.random.Generator, rgb: np.ndarray, alpha: np.ndarray) -> Sprite:
    """The sprite as drawn or left and right exchanged, by chance."""
    step = -1 if tx.pick(rng, 2) else 1
    return Sprite(rgb[..., ::step], alpha[:, ::step])


def _sphere_light(y: np.ndarray, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Brightness of a unit sphere lit from the upper left; (h,w) around 0.45..1.1."""
    return 0.5 + 0.6 * np.clip(-0.55 * y - 0.45 * x + 0.7 * z, 0, 1)


def draw_ball(rng: np.random.Generator, size: float) -> Sprite:
    """A beach ball: red and white wedges that meet in a pole, glossy."""
    side = int(size) + 2
    y, x = tx.grid(side, side)
    radius = size / 2
    u, v = y / radius, x / radius
    z = np.sqrt(np.maximum(1 - u * u - v * v, 0))
    cos, sin = _turn(rng, 1.0)
    lean = tx.uniform(rng, 0.35, 0.75)
    a, b = cos * v + sin * u, (cos * u - sin * v) - lean * z
    # three planes through the pole cut six wedges; the sign of the product alternates
    wedges = a * (0.5 * a + 0.866 * b) * (0.5 * a - 0.866 * b)
    red, white = tx.jitter(rng, (0.86, 0.08, 0.10)), tx.jitter(rng, (0.96, 0.94, 0.92), 0.03)
    rgb = tx.mix(red, white, tx.cover(-wedges * radius * 3))
    shine = tx.smoothstep(1 - tx.disc(u + 0.42, v + 0.36, 0.26, 0.26) / 0.2 - 1)
    rgb = tx.mix(rgb * _sphere_light(u, v, z), tx.colour((1, 1, 1)), shine * 0.7)
    return Sprite(rgb, tx.cover(tx.disc(y, x, radius, radius)))


def draw_box(rng: np.random.Generator, size: float) -> Sprite:
    """A brown cardboard box seen from a corner: light lid, dark side, tape over the front."""
    side = int(size) + 2
    y, x = tx.grid(side, side)
    half, depth = size / 2, size * tx.uniform(rng, 0.16, 0.26)
    brown = tx.jitter(rng, (0.60, 0.40, 0.21))
    grain = tx.noise(rng, (side, side), 2.2, 26) * 0.22 + 0.86
    front = tx.rectangle(y - depth / 2, x + depth / 2, half - depth / 2, half - depth / 2)
    rgb = np.broadcast_to(brown * 0.62, (3, side, side))
    lid = (
        (-half, -half + depth),
        (-half, half),
        (-half + depth, half - depth),
        (-half + depth, -half),
    )
    rgb = tx.over(rgb, brown * 1.32, tx.polygon(y, x, lid))
    rgb = tx.over(rgb, brown, front)
    tape = np.maximum(front, np.abs(x + depth / 2) - size * 0.07)
    rgb = tx.over(rgb, tx.colour((0.86, 0.76, 0.55)), tape)
    rgb = rgb * (1 - 0.4 * tx.cover(np.abs(front) - 0.4)) * grain
    outline = (
        (-half, -half + depth),
        (-half, half),
        (half - depth, half),
        (half, half - depth),
        (half, -half),
        (-half + depth, -half),
    )
    return _maybe_mirror(rng, rgb, tx.cover(tx.polygon(y, x, outline)))


def draw_star(rng: np.random.Generator, size: float) -> Sprite:
    """A golden star of ten facets, alternately light and dark, with glitter."""
    side = int(size) + 2
    y, x = tx.grid(side, side)
    cos, sin = _turn(rng, 0.3)
    y, x = cos * y - sin * x, cos * x + sin * y  # (h, 1), (1, w) -> (h, w)
    gold = tx.jitter(rng, (0.98, 0.80, 0.10), 0.03)
    distance: np.ndarray = np.full((side, side), 1e3, np.float32)
    light: np.ndarray = np.ones((side, side), np.float32)
    radius = size / 2
    for k, (y0, x0) in enumerate(STAR):
        y1, x1 = STAR[(k + 1) % len(STAR)]
        sector = (y * x0 - x * y0 >= 0) & (y * x1 - x * y1 < 0)
        length = float(np.sqrt((y1 - y0) ** 2 + (x1 - x0) ** 2))
        edge = (x - x0 * radius) * ((y1 - y0) / length) - (y - y0 * radius) * ((x1 - x0) / length)
        distance = np.where(sector, edge, distance)
        light = np.where(sector, 1.06 if k % 2 else 0.74, light)
    glitter = tx.smoothstep((tx.noise(rng, (side, side), 2.4, 2.4) - 0.7) * 5)
    rgb = tx.mix(gold * light, tx.colour((1.0, 0.98, 0.75)), glitter * 0.8)
    return Sprite(rgb, tx.cover(distance))


def draw_car(rng: np.random.Generator, size: float) -> Sprite:
    """A violet car from the side: glossy body, dark windows, two wheels; 0.56 as high as long."""
    height, width = int(size * 0.56) + 2, int(size) + 2
    y, x = tx.grid(height, width)
    top, half = -size * 0.28, size / 2
    paint = tx.jitter(rng, (0.47, 0.14, 0.66), 0.05)
    body = tx.rectangle(y - size * 0.07, x, size * 0.135, half, size * 0.08)
    cabin = tx.polygon(
        y, x, ((top, -half * 0.42), (top, half * 0.40), (0.0, half * 0.74), (0.0, -half * 0.70))
    )
    pane = tx.polygon(
        y,
        x,
        (
            (top * 0.80, -half * 0.37),
            (top * 0.80, half * 0.34),
            (-size * 0.03, half * 0.56),
            (-size * 0.03, -half * 0.53),
        ),
    )
    gloss = np.clip(1.18 - (y - top) / (size * 0.56) * 0.75, 0.4, 1.3)
    rgb = paint * (gloss * np.ones_like(x))
    rgb = tx.over(rgb, tx.colour((0.16, 0.18, 0.28)), np.maximum(pane, 1.2 - np.abs(x)))
    rgb = tx.over(rgb, tx.colour((0.80, 0.66, 0.92)), np.abs(y - size * 0.01) - 0.7)
    lamp = tx.disc(y - size * 0.05, x - half * 0.90, size * 0.035, size * 0.04)
    rgb = tx.over(rgb, tx.colour((1.0, 0.95, 0.65)), lamp)
    distance = np.minimum(body, cabin)
    for side in (-0.56, 0.56):
        wheel = tx.disc(y - size * 0.155, x - half * side, size * 0.125, size * 0.125)
        rgb = tx.over(rgb, tx.colour((0.09, 0.08, 0.11)), wheel)
        rgb = tx.over(rgb, tx.colour((0.70, 0.68, 0.74)), wheel + size * 0.07)
        distance = np.minimum(distance, wheel)
    return _maybe_mirror(rng, rgb, tx.cover(distance))


def draw_cone(rng: np.random.Generator, size: float) -> Sprite:
    """A traffic cone: orange with two white bands, on a dark orange foot."""
    side = int(size) + 2
    y, x = tx.grid(side, side)
    half = size / 2
    orange = tx.jitter(rng, (1.0, 0.46, 0.04), 0.03)
    body = tx.polygon(
        y,
        x,
        (
            (-half, -half * 0.28),
            (-half, half * 0.28),
            (half * 0.8, half * 0.80),
            (half * 0.8, -half * 0.80),
        ),
    )
    foot = tx.rectangle(y - half * 0.84, x, half * 0.16, half * 0.98, 2.0)
    # the cone's own half width at each row turns the column into -1..1 across the cone
    across = x / (half * (0.54 + 0.30 * y / half))
    light = np.clip(1.05 - 0.35 * across - 0.25 * across * across, 0.45, 1.15)
    rgb = np.broadcast_to(orange, (3, side, side))
    bow = y - 2.5 * (1 - across * across)
    for centre in (-0.42, 0.22):
        band = np.abs(bow - half * centre) - half * 0.13
        rgb = tx.over(rgb, tx.colour((0.97, 0.96, 0.94)), band)
    rgb = rgb * light
    rgb = tx.over(rgb, orange * 0.68, foot)
    return Sprite(rgb, tx.cover(np.minimum(body, foot)))


def draw_balloon(rng: np.random.Generator, size: float) -> Sprite:
    """A hot-air balloon: pink and maroon chequers around a sphere, a small basket below."""
    height, width = int(size * 1.22) + 2, int(size) + 2
    y, x = tx.grid(height, width)
    radius = size / 2
    centre = -size * 0.11
    u, v = (y - centre) / radius, x / radius
    z = np.sqrt(np.maximum(1 - u * u - v * v, 0.02))
    around = v / np.sqrt(np.maximum(1 - u * u, 0.05))
    pink, dark = tx.jitter(rng, (1.0, 0.50, 0.74), 0.03), tx.jitter(rng, (0.62, 0.05, 0.34), 0.03)
    chequer = tx.wave(around * 1.25 + tx.uniform(rng, 0, 1)) * tx.wave(u * 1.5 + 0.1)
    rgb = tx.mix(pink, dark, tx.smoothstep(chequer * 3 + 0.5)) * _sphere_light(u, v, z)
    ball = tx.disc(y - centre, x, radius, radius)
    neck = tx.polygon(
        y,
        x,
        (
            (centre + radius * 0.55, -radius * 0.84),
            (centre + radius * 0.55, radius * 0.84),
            (size * 0.46, radius * 0.26),
            (size * 0.46, -radius * 0.26),
        ),
    )
    basket = tx.rectangle(y - size * 0.53, x, size * 0.08, radius * 0.26, 1.0)
    rgb = tx.over(rgb, tx.colour((0.36, 0.16, 0.16)), basket)
    return Sprite(rgb, tx.cover(np.minimum(np.minimum(ball, neck), basket)))


THINGS: dict[str, Callable[[np.random.Generator, float], Sprite]] = {
    'ball': draw_ball,
    'box': draw_box,
    'star': draw_star,
    'car': draw_car,
    'cone': draw_cone,
    'balloon': draw_balloon,
}
