"""Objects drawn over their picture: mask, box, name and score."""

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .instances import Instances
from .pictures import Palette


def caption(name: str, score: float | None) -> str:
    """Name and score of an object, such as ``cat 87``."""
    return name.strip() if score is None else f'{name.strip()} {100 * score:.0f}'


def text_color(background: Sequence[int]) -> str:
    """Black or white, whichever is easier to read on a colour."""
    red, green, blue = background
    return 'black' if 0.3 * red + 0.59 * green + 0.11 * blue > 140 else 'white'  # perceived light


def draw_instances(
    picture: np.ndarray,
    instances: Instances,
    classes: Sequence[str],
    palette: Palette,
    opacity: float = 0.5,
) -> np.ndarray:
    """Draw masks, boxes, names and scores, the most certain objects on top.

    Names are moved into the picture where they would leave it.

    Args:
        picture: RGB, (H, W, 3), uint8.
        instances: Objects, the most certain first.
        classes: Name of each class.
        palette: RGB colour of each class.
        opacity: Share of the colour within masks, 0 to 1.

    Returns:
        RGB picture, (H, W, 3), uint8.
    """
    colors = np.asarray(palette, np.uint8)[instances.labels]  # (n, 3)
    painted = picture.copy()
    for i in reversed(range(len(instances))):
        if instances.masks is not None:
            inside = instances.masks[i]
            mixed = picture[inside] * (1 - opacity) + colors[i] * opacity
            painted[inside] = mixed.astype(np.uint8)
    image = Image.fromarray(painted)
    draw = ImageDraw.Draw(image)
    size = int(np.clip(min(picture.shape[:2]) // 24, 9, 24))
    font = ImageFont.load_default(size=size)
    for i in reversed(range(len(instances))):
        left, top, right, bottom = (round(float(x)) for x in instances.boxes[i])
        right, bottom = max(left, right - 1), max(top, bottom - 1)
        color = tuple(int(x) for x in colors[i])
        corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
        draw.line(corners, fill=color)  # Pillow's rectangle is too large for a box without area
        score = None if instances.scores is None else float(instances.scores[i])
        text = caption(classes[instances.labels[i]], score)
        width, height = math.ceil(font.getlength(text)) + 4, math.ceil(1.25 * size)
        above = top - height if top >= height else top  # inside the box at the upper edge
        x = max(0, min(left, image.width - 1 - width))
        y = max(0, min(above, image.height - 1 - height))
        draw.rectangle((x, y, x + width, y + height), fill=color)
        draw.text((x + 2, y), text, fill=text_color(color), font=font)
    return np.asarray(image)
