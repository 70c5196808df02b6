"""The stuff of the embedded scenes: textures of the ground, and what stands on it.

A texture fills a given shape (h,w) and comes as (3,h,w); a drawer returns a sprite.
"""

import numpy as np

from . import textures as tx
from .textures import Sprite


def sky(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Blue that pales towards the bottom, with white clouds."""
    fall = np.linspace(0, 1, shape[0], dtype=np.float32)[:, None] * np.ones(shape, np.float32)
    blue = tx.mix(
        tx.jitter(rng, (0.27, 0.52, 0.92)), tx.jitter(rng, (0.70, 0.85, 0.98), 0.03), fall
    )
    cover_share = tx.uniform(rng, 0.42, 0.62)
    white = tx.smoothstep((tx.clouds(rng, shape, 22) - cover_share) * 4)
    return tx.mix(blue, tx.colour((0.97, 0.97, 0.99)), white * 0.9)


def grass(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Light green meadow of upright blades."""
    blades = tx.noise(rng, shape, 5, 1.6)
    tone = tx.noise(rng, shape, 18, 36) * 0.4 + blades * 0.6
    return tx.mix(tx.jitter(rng, (0.28, 0.50, 0.12)), tx.jitter(rng, (0.62, 0.80, 0.30)), tone)


def water(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Dark teal with long flat ripples."""
    ripple = tx.noise(rng, shape, 2.6, 17)
    base = tx.mix(tx.jitter(rng, (0.02, 0.27, 0.36)), tx.jitter(rng, (0.08, 0.46, 0.52)), ripple)
    glint = tx.smoothstep((tx.noise(rng, shape, 2.2, 11) - 0.72) * 6)
    return tx.mix(base, tx.colour((0.72, 0.93, 0.92)), glint * 0.75)


def asphalt(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Grey with coarse grains."""
    grain = rng.random(shape, dtype=np.float32) * 0.6 + tx.noise(rng, shape, 9, 24) * 0.4
    return tx.mix(
        tx.jitter(rng, (0.27, 0.27, 0.29), 0.02), tx.jitter(rng, (0.50, 0.50, 0.52), 0.02), grain
    )


def foliage(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Dark bluish green in clumps of leaves."""
    clumps = tx.noise(rng, shape, 6, 6) * 0.55 + tx.noise(rng, shape, 2.2, 2.2) * 0.45
    return tx.mix(
        tx.jitter(rng, (0.01, 0.12, 0.06), 0.01), tx.jitter(rng, (0.16, 0.42, 0.16), 0.03), clumps
    )


def draw_tree(rng: np.random.Generator, size: float) -> Sprite:
    """A crown of overlapping round clumps on a short thick trunk; ``size`` is the crown's width."""
    height, width = int(size * 1.25), int(size) + 2
    y, x = tx.grid(height, width)
    trunk = tx.rectangle(y - height * 0.25, x, height * 0.25, size * 0.11)
    ridge = tx.noise(rng, (height, width), 14, 2.5)
    bark = tx.jitter(rng, (0.30, 0.20, 0.12), 0.02) * (0.75 + 0.5 * ridge)
    middle = -height / 2 + size * 0.46
    crown: np.ndarray = np.full((height, width), height, np.float32)  # far outside
    light: np.ndarray = np.ones((height, width), np.float32)
    for down, right, share in (
        (0.0, 0.0, 0.40),
        (0.10, -0.22, 0.27),
        (0.10, 0.22, 0.27),
        (-0.17, -0.12, 0.27),
        (-0.15, 0.15, 0.27),
        (0.2, 0.0, 0.27),
    ):
        radius = size * share * tx.uniform(rng, 0.9, 1.04)
        shift = size * tx.uniform(rng, -0.03, 0.03)
        dy, dx = y - middle - size * down - shift, x - size * right
        clump = tx.disc(dy, dx, radius, radius)
        shade = np.clip(1.0 - 0.5 * (dy + 0.6 * dx) / radius, 0.55, 1.6)
        light = np.where(clump < crown, shade, light)
        crown = np.minimum(crown, clump)
    crown = crown + (tx.noise(rng, (height, width), 3, 3) - 0.5) * 3
    rgb = tx.over(bark, foliage(rng, (height, width)) * light, crown)
    return Sprite(rgb, tx.cover(np.minimum(crown, trunk)))


def draw_building(rng: np.random.Generator, size: float) -> Sprite:
    """A facade in a warm plaster colour with rows of windows; ``size`` is its width."""
    height, width = int(size * tx.uniform(rng, 0.95, 1.5)), int(size)
    y, x = tx.grid(height, width)
    walls = ((0.90, 0.78, 0.60), (0.85, 0.62, 0.47), (0.93, 0.85, 0.70))
    wall = tx.jitter(rng, walls[tx.pick(rng, len(walls))], 0.03)
    stain = tx.noise(rng, (height, width), 10, 4) * 0.12 + 0.90
    side = np.clip(1.06 - 0.12 * x / (width / 2), 0.9, 1.15)
    rgb = wall * (stain * side)
    columns = max(2, int(width / 13))
    pitch_w, pitch_h = width / columns, 15.0
    col, row = (x + width / 2) / pitch_w, (y + height / 2 - 9) / pitch_h
    pane = tx.rectangle(
        (row - np.floor(row) - 0.5) * pitch_h,
        (col - np.floor(col) - 0.5) * pitch_w,
        4.6,
        pitch_w * 0.27,
    )
    lit = rng.random((int(height / pitch_h) + 3, columns + 1), dtype=np.float32) < 0.15
    cell = lit[
        np.clip(np.floor(row), 0, lit.shape[0] - 1).astype(np.int64),
        np.clip(np.floor(col), 0, columns).astype(np.int64),
    ]  # (h, 1), (1, w) -> (h, w)
    glass = np.where(cell, tx.colour((0.99, 0.88, 0.52)), tx.colour((0.24, 0.29, 0.38)))
    rgb = np.where(row >= 0, tx.mix(rgb, glass, tx.cover(pane)), rgb)
    ledge = np.abs(row - np.floor(row + 0.5)) * pitch_h - 0.6
    rgb = tx.over(rgb, wall * 0.82, ledge)
    rgb = tx.over(rgb, tx.jitter(rng, (0.45, 0.24, 0.18), 0.03), y + height / 2 - 5)
    return Sprite(rgb, np.ones((height, width), np.float32))
