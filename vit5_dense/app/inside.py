"""The second tab as plain functions of what a backbone sees."""

from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from .results import enlarged, growth

PATCH, CLS, PCA = 'one patch (click on it)', 'CLS', 'features (PCA)'


class View(NamedTuple):
    """The inside of a backbone at one picture.

    Attributes:
        seen: See ``vit5_dense.maps.Seen``.
        source: The picture, RGB, uint8, of any size.
        picture: As the model saw it, RGB, (H, W, 3), uint8; small ones enlarged.
        patch_size: In pixels of ``picture``.
    """

    seen: Any
    source: np.ndarray
    picture: np.ndarray
    patch_size: int


def make_view(seen: Any, source: np.ndarray, picture: np.ndarray) -> View:
    """The view of a picture that the model saw in the size it saw it; see ``View``."""
    grow = growth(picture)
    return View(seen, source, enlarged(picture, grow), grow * seen.patch_size)


def token_choices(registers: int) -> list[str]:
    """What the second tab can show: attention of a patch, of CLS, of each register; features."""
    return [PATCH, CLS, *(f'register {number}' for number in range(1, 1 + registers)), PCA]


def patch_at(view: View, x: int, y: int) -> tuple[int, int]:
    """Row and column of the patch below a pixel of ``view.picture``."""
    rows, columns = view.seen.grid
    return min(y // view.patch_size, rows - 1), min(x // view.patch_size, columns - 1)


def mark(view: View, patch: tuple[int, int]) -> np.ndarray:
    """The picture with a frame around a patch, RGB, (H, W, 3), uint8."""
    image = Image.fromarray(view.picture)
    top, left = (part * view.patch_size for part in patch)
    pen, thick = ImageDraw.Draw(image), max(1, view.patch_size // 16)
    for margin, width, color in ((-thick, 3 * thick, 'black'), (0, thick, 'white')):
        far = view.patch_size - 1 - margin
        box = (left + margin, top + margin, left + far, top + far)
        pen.rectangle(box, outline=color, width=width)  # seen on dark and on bright ground
    return np.asarray(image)


def inside(view: View, what: str, block: int, patch: tuple[int, int]) -> np.ndarray:
    """What the second tab shows.

    Args:
        view: The inside of the backbone.
        what: One of ``token_choices``.
        block: From 0.
        patch: Row and column, for the attention of a patch.

    Returns:
        A map, (h, w), float32; for features a picture, (h, w, 3), uint8.
    """
    if what == PCA:
        return view.seen.pca(block)
    if what == CLS:
        return view.seen.cls_attention(block)
    if what == PATCH:
        return view.seen.attention(block, *patch)
    return view.seen.register_attention(block, int(what.removeprefix('register ')) - 1)
