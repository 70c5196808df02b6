"""Shapes and noise as plain numpy arrays: what the embedded scenes are painted with.

Only ``+ - * /``, ``sqrt`` and comparisons touch a pixel, never ``sin`` or ``exp``: IEEE 754 rounds
the former alike everywhere, while the latter differ in the last bit between machines. So a seed
gives the same bytes on every machine. Pictures are float32 (3,h,w), RGB in 0..1, colours (3,1,1),
lengths pixels.
"""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

Colour = Sequence[float]


class Sprite(NamedTuple):
    """A drawn object: rgb (3,h,w) in 0..1 and the share of each pixel that it covers, (h,w).

    What covers half a pixel or more owns that pixel's label. The foot is the bottom row.
    """

    rgb: np.ndarray
    alpha: np.ndarray


def uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """A plain float in [low, high): a numpy scalar would widen float32 arrays under numpy 2."""
    return low + (high - low) * float(rng.random())


def pick(rng: np.random.Generator, count: int) -> int:
    """An index below ``count``."""
    return int(rng.random() * count)


def grid(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixel centres of a window, rows (h,1) and columns (1,w), counted from its middle."""
    y = np.arange(height, dtype=np.float32) - (height - 1) / 2
    x = np.arange(width, dtype=np.float32) - (width - 1) / 2
    return y[:, None], x[None, :]


def smoothstep(t: np.ndarray) -> np.ndarray:
    """Ramp from 0 to 1 with flat ends."""
    t = np.clip(t, 0, 1)
    return t * t * (3 - 2 * t)


def wave(x: np.ndarray) -> np.ndarray:
    """A sine of period 1 made of parabolas, in -1..1."""
    t = 2 * (x - np.floor(x)) - 1
    return 4 * t * (np.abs(t) - 1)


def _lattice_weights(length: int, cell: float) -> tuple[np.ndarray, np.ndarray]:
    position = np.arange(length, dtype=np.float32) / cell
    index = np.floor(position)
    return index.astype(np.int64), smoothstep(position - index)


def noise(
    rng: np.random.Generator, shape: tuple[int, int], cell_h: float, cell_w: float
) -> np.ndarray:
    """Smooth noise in 0..1 with blobs of about ``cell_h`` x ``cell_w`` pixels."""
    height, width = shape
    rows, fy = _lattice_weights(height, cell_h)
    cols, fx = _lattice_weights(width, cell_w)
    knots = rng.random((int(rows[-1]) + 2, int(cols[-1]) + 2), dtype=np.float32)
    lines = knots[:, cols] * (1 - fx) + knots[:, cols + 1] * fx  # (kh, kw) -> (kh, w)
    fy = fy[:, None]
    return lines[rows] * (1 - fy) + lines[rows + 1] * fy  # (kh, w) -> (h, w)


def clouds(rng: np.random.Generator, shape: tuple[int, int], cell: float) -> np.ndarray:
    """Three octaves of noise in 0..1."""
    return (
        noise(rng, shape, cell, cell * 2) * 4
        + noise(rng, shape, cell / 2, cell) * 2
        + noise(rng, shape, cell / 4, cell / 2)
    ) / 7


def mix(first: np.ndarray, second: np.ndarray, t: np.ndarray) -> np.ndarray:
    """From ``first`` (t = 0) to ``second`` (t = 1); colours or pictures, t (h,w)."""
    return first + (second - first) * t


def colour(values: Colour) -> np.ndarray:
    """A colour as float32, so that no texture widens to float64."""
    return np.asarray(values, dtype=np.float32)[:, None, None]  # (3,) -> (3, 1, 1)


def jitter(rng: np.random.Generator, values: Colour, amount: float = 0.04) -> np.ndarray:
    """The colour, each channel moved by at most ``amount``."""
    return colour([v + uniform(rng, -amount, amount) for v in values])


def disc(y: np.ndarray, x: np.ndarray, radius_h: float, radius_w: float) -> np.ndarray:
    """Distance to an ellipse (exact for a circle), negative inside."""
    ratio = np.sqrt((y / radius_h) ** 2 + (x / radius_w) ** 2)
    return (ratio - 1) * min(radius_h, radius_w)


def rectangle(
    y: np.ndarray, x: np.ndarray, half_h: float, half_w: float, corner: float = 0.0
) -> np.ndarray:
    """Distance to a rectangle with rounded corners, negative inside."""
    dy, dx = np.abs(y) - (half_h - corner), np.abs(x) - (half_w - corner)
    outside = np.sqrt(np.maximum(dy, 0) ** 2 + np.maximum(dx, 0) ** 2)
    return outside + np.minimum(np.maximum(dy, dx), 0) - corner


def polygon(y: np.ndarray, x: np.ndarray, points: Sequence[tuple[float, float]]) -> np.ndarray:
    """Signed distance to the edges of a convex polygon of (y, x) corners, clockwise as seen."""
    edges = []
    for (y0, x0), (y1, x1) in zip(points, [*points[1:], points[0]], strict=True):
        length = float(np.sqrt((y1 - y0) ** 2 + (x1 - x0) ** 2))
        edges.append((x - x0) * ((y1 - y0) / length) - (y - y0) * ((x1 - x0) / length))
    return reduce(np.maximum, edges)


def cover(distance: np.ndarray) -> np.ndarray:
    """Share of each pixel inside a shape: 1 inside, 0 outside, a ramp of one pixel between."""
    return np.clip(0.5 - distance, 0, 1)


def over(rgb: np.ndarray, paint: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Lay ``paint`` over a picture wherever ``distance`` is negative."""
    return mix(rgb, paint, cover(distance))
