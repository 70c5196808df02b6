"""A picture, its truth, its prediction and the errors, side by side."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from ..instance_pictures import draw_instances
from ..instances import Instances
from ..pictures import Palette, overlay
from .confusion import Matches

PANEL = 480  # pixels of the longer side
ENLARGED = 3  # at most, lest a picture of a few pixels fill the page
GAP = 8
RIGHT, MISSED, ALARM, WRONG = (40, 160, 60), (220, 20, 30), (255, 140, 0), (160, 50, 200)
OPACITY = 0.6


def panel_size(height: int, width: int) -> tuple[int, int]:
    """Height and width of a panel for a picture."""
    scale = min(PANEL / max(height, width), ENLARGED)
    return max(1, round(height * scale)), max(1, round(width * scale))


def resize(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """An RGB picture (H, W, 3), uint8, in another height and width."""
    return np.asarray(Image.fromarray(picture).resize(size[::-1]))


def nearest(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Labels or masks (..., H, W) in another height and width."""
    rows, columns = (
        np.arange(new) * old // new for new, old in zip(size, maps.shape[-2:], strict=True)
    )
    return maps[..., rows[:, None], columns]


def gray(picture: np.ndarray) -> np.ndarray:
    """A pale gray copy of an RGB picture, (H, W, 3), uint8, on which colours stand out."""
    light = 110 + picture.mean(axis=-1, keepdims=True) / 2.2  # (H, W, 1)
    return np.repeat(light, 3, axis=-1).astype(np.uint8)


def side_by_side(panels: Sequence[np.ndarray]) -> np.ndarray:
    """RGB pictures of one size in a row with white between them."""
    between = np.full((len(panels[0]), GAP, 3), 255, np.uint8)
    rows = [part for panel in panels for part in (between, panel)]
    return np.concatenate(rows[1:], axis=1)


def pixel_sheet(
    picture: np.ndarray,
    truth: np.ndarray,
    predicted: np.ndarray,
    palette: Palette,
    ignored: int = 255,
) -> np.ndarray:
    """Errors of a segmentation: right pixels gray, wrong ones red, ignored ones black.

    Args:
        picture: RGB, (H', W', 3), uint8.
        truth: Class numbers, (H, W).
        predicted: Class numbers, (H, W).
        palette: RGB colour of each class.
        ignored: Label of the pixels that do not count.

    Returns:
        Four panels in a row, RGB, uint8.
    """
    size = panel_size(*truth.shape)
    picture = resize(picture, size)
    truth, predicted = nearest(truth, size), nearest(predicted, size)
    errors = gray(picture)
    errors[truth != predicted] = MISSED
    errors[truth == ignored] = 0
    maps = [overlay(picture, labels, palette, OPACITY) for labels in (truth, predicted)]
    return side_by_side([picture, *maps, errors])


def resized(instances: Instances, old: tuple[int, int], new: tuple[int, int]) -> Instances:
    """Objects of a picture with another height and width."""
    scale = np.array([new[1] / old[1], new[0] / old[0]] * 2)
    masks = None if instances.masks is None else nearest(instances.masks, new)
    return Instances(instances.boxes * scale, instances.labels, instances.scores, masks)


def pick(
    matches: Matches, truth: Instances, found: Instances, classes: Sequence[str]
) -> tuple[Instances, list[str], list[tuple[int, int, int]]]:
    """The objects of the error panel with their captions and colours, errors first."""
    rows = [(truth, i, f'missed {classes[truth.labels[i]]}', MISSED) for i in matches.missed]
    for i, j in matches.wrong:
        words = f'{classes[found.labels[j]]}, is {classes[truth.labels[i]]}'
        rows.append((found, j, words, WRONG))
    for j, kind in matches.alarms.items():
        rows.append((found, j, f'{kind} {classes[found.labels[j]]}', ALARM))
    rows += [(found, j, classes[found.labels[j]], RIGHT) for _, j in matches.right]
    boxes = [one.boxes[i] for one, i, _, _ in rows]
    masks = [one.masks[i] for one, i, _, _ in rows if one.masks is not None]
    shown = Instances(
        np.reshape(boxes, (-1, 4)),
        np.arange(len(rows)),
        masks=np.stack(masks) if rows and len(masks) == len(rows) else None,
    )
    return shown, [words for _, _, words, _ in rows], [color for _, _, _, color in rows]


def object_sheet(
    picture: np.ndarray,
    size: tuple[int, int],
    truth: Instances,
    found: Instances,
    matches: Matches,
    classes: Sequence[str],
    palette: Palette,
) -> np.ndarray:
    """Errors of a detection in colours: see ``RIGHT``, ``MISSED``, ``ALARM`` and ``WRONG``.

    Args:
        picture: RGB, (H', W', 3), uint8.
        size: Height and width of the picture that boxes and masks belong to.
        truth: Objects labelled.
        found: Objects found.
        matches: Which is which.
        classes: Name of each class.
        palette: RGB colour of each class.

    Returns:
        Four panels in a row, RGB, uint8.
    """
    panel = panel_size(*size)
    picture = resize(picture, panel)
    truth, found = (resized(one, size, panel) for one in (truth, found))
    shown, words, colors = pick(matches, truth, found, classes)
    drawn = [draw_instances(picture, one, classes, palette) for one in (truth, found)]
    return side_by_side([picture, *drawn, draw_instances(gray(picture), shown, words, colors)])
