"""Masks of objects from the grid inside their box to the pixels of the picture, in numpy."""

import numpy as np


def axis_weights(start: float, stop: float, length: int, cells: int) -> tuple[slice, np.ndarray]:
    """Share of each cell of a mask in the pixels of one axis.

    Bilinear interpolation between the centres of the cells; beyond the mask there is nothing.

    Args:
        start: Where the box begins, in pixels.
        stop: Where it ends.
        length: Of the picture's axis, in pixels.
        cells: Of the mask's axis.

    Returns:
        The pixels from one before the box to one behind it, and their weights, (pixels, cells). A
        box without extent has the middle of the mask everywhere, as in mmdet.
    """
    first = max(int(np.floor(start)) - 1, 0)
    last = min(int(np.ceil(stop)) + 1, length)
    begin, end = np.float32(start), np.float32(stop)
    pixels = np.arange(first, last, dtype=np.float32) + np.float32(0.5)
    with np.errstate(divide='ignore', invalid='ignore'):
        places = (pixels - begin) / (end - begin) * 2 - 1  # -1 to 1 over the box
    places[np.isinf(places)] = 0
    places = (places + 1) * np.float32(cells / 2) - np.float32(0.5)
    distances = np.abs(places[:, None] - np.arange(cells, dtype=np.float32))
    return slice(first, last), np.maximum(0, 1 - distances)


def paste_masks(
    masks: np.ndarray, boxes: np.ndarray, size: tuple[int, int], threshold: float = 0.5
) -> np.ndarray:
    """Masks of the whole picture, by the rule of mmdet's ``_do_paste_mask`` on a CPU.

    Every mask is computed inside its box alone.

    Args:
        masks: Probability inside the box, (n, h, w), fp32.
        boxes: Left, top, right, bottom in pixels, (n, 4), fp32.
        size: Height and width of the picture.
        threshold: Least probability of a pixel of the object.

    Returns:
        (n, H, W), bool.
    """
    pasted = np.zeros((len(masks), *size), bool)
    for whole, mask, (left, top, right, bottom) in zip(pasted, masks, boxes, strict=True):
        rows, down = axis_weights(top, bottom, size[0], mask.shape[0])
        columns, across = axis_weights(left, right, size[1], mask.shape[1])
        whole[rows, columns] = down @ mask @ across.T >= threshold
    return pasted
