"""Segment pictures of any size in tiles, with little more than the logits of one in memory.

Tiles are cut from the picture as it is. Where two tiles overlap by O pixels, the quarter of O next
to either edge is dropped, for a model sees least there, and over the half of O between them the
logits pass from one tile to the other in a straight line. A plain average would keep the worst
pixels of a tile and leave a step where it ends; this way seams do not show, and a model whose view
reaches no further than O / 4 gives the labels of the whole picture. Only the logits of these
halves wait for the next tile: a strip of O / 2 rows as wide as the picture, and one of O / 2
columns as high as a tile, in fp32. Everything else becomes labels at once.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from torch import Tensor

from .errors import UserError
from .inference import Segmenter
from .prefetch import prefetch, runs

RESIZING = ('Resize', 'ResizeShortestEdge')


class Span(NamedTuple):
    """What one row or column of tiles covers of an axis, in pixels of the picture.

    Attributes:
        start: First pixel of the tiles.
        stop: End of the tiles.
        first: First pixel they count in; before it they are dropped.
        done: End of the pixels that no later tile counts in.
        last: End of the pixels they count in.
        weights: Share in each pixel from ``first`` to ``last``, fp32; all spans add up to 1.
    """

    start: int
    stop: int
    first: int
    done: int
    last: int
    weights: Tensor


def axis_spans(length: int, tile: int, overlap: int) -> list[Span]:
    """Cut an axis into tiles of one size; the last is moved back inside.

    Args:
        length: Of the axis.
        tile: Size of a tile; an axis that is shorter is one tile.
        overlap: Pixels that neighbours share at least, less than ``tile``.
    """
    size = min(tile, length)
    starts = [*range(0, length - size, tile - overlap), length - size]
    half = overlap // 4  # of the pixels over which logits pass from tile to tile
    middles = [(start + size + after) // 2 for start, after in pairwise(starts)]
    pixels = torch.arange(length, dtype=torch.float64) + 0.5
    passed = [((pixels - m) / max(2 * half, 1) + 0.5).clip(0, 1) for m in middles]
    shares = [torch.ones_like(pixels), *passed, torch.zeros_like(pixels)]
    firsts = [0, *(m - half for m in middles)]
    dones = [*firsts[1:], length]
    lasts = [*(m + half for m in middles), length]
    return [
        Span(start, start + size, first, done, last, (here - after)[first:last].float())
        for start, first, done, last, (here, after) in zip(
            starts, firsts, dones, lasts, pairwise(shares), strict=True
        )
    ]


def count_tiles(size: tuple[int, int], tile: int, overlap: int) -> int:
    """Number of tiles of a picture of this height and width."""
    return len(axis_spans(size[0], tile, overlap)) * len(axis_spans(size[1], tile, overlap))


def merge(
    logits: Iterator[Tensor],
    rows: Sequence[Span],
    columns: Sequence[Span],
    decide: Callable[[Tensor], Tensor],
) -> np.ndarray:
    """Labels of a picture from the logits of its tiles.

    Args:
        logits: (classes, h, w) of each tile, row by row; they are changed.
        rows: Spans of the height.
        columns: Spans of the width.
        decide: Class of every pixel, (h, w), from logits.

    Returns:
        Class number of every pixel, (H, W), uint16.
    """
    labels = np.zeros((rows[-1].last, columns[-1].last), np.uint16)
    above = left = torch.empty(0)
    with torch.inference_mode():
        for row, column in product(rows, columns):
            block = next(logits).float()
            block = block[
                :,
                row.first - row.start : row.last - row.start,
                column.first - column.start : column.last - column.start,
            ]
            block *= row.weights.to(block.device)[:, None]
            block *= column.weights.to(block.device)
            if column.first:
                block[:, :, : left.shape[2]] += left
            done = column.done - column.first
            left = block[:, :, done:].clone()
            block = block[:, :, :done]
            if not row.first and not column.first:
                above = block.new_empty(len(block), row.last - row.done, columns[-1].last)
            strip = above[:, :, column.first : column.done]
            if row.first:
                block[:, : strip.shape[1]] += strip
            done = row.done - row.first
            classes = decide(block[:, :done]).cpu().numpy()
            labels[row.first : row.done, column.first : column.done] = classes
            if row.done < row.last:
                strip.copy_(block[:, done:])
            del block  # not beside the next tile's
    return labels


def segment(
    segmenter: Segmenter,
    picture: np.ndarray,
    tile: int,
    overlap: int,
    batch: int = 1,
    tick: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Segment a picture tile by tile; a picture of one tile exactly as ``segmenter`` does it.

    Args:
        segmenter: Made from a config that went through ``for_tiles``.
        picture: RGB, (H, W, 3), uint8.
        tile: Height and width of a tile, at least 16 pixels.
        overlap: Pixels that neighbours share at least; of less than 4 nothing is blended.
        batch: Tiles that are run together; each needs memory for its logits.
        tick: Called with 1 for each tile done.

    Returns:
        Class number of every pixel, (H, W), uint16.
    """
    rows, columns = (axis_spans(length, tile, overlap) for length in picture.shape[:2])

    def logits() -> Iterator[Tensor]:
        pieces = (
            picture[row.start : row.stop, column.start : column.stop]
            for row, column in product(rows, columns)
        )
        items = prefetch(segmenter.prepare, pieces, 2 * batch)
        for together in runs(items, lambda item: item['inputs'].shape, batch):
            found = segmenter.logits(together)
            while found:
                tick(1)
                yield found.pop(0)  # held by the consumer alone

    return merge(logits(), rows, columns, segmenter.decide)


def check_tiles(tile: int | None, overlap: int | None) -> int:
    """The overlap of tiles in pixels: that given, else an eighth of the tile.

    Raises:
        UserError: If there can be no such tiles; with the option.
    """
    if tile is None:
        if overlap is not None:
            raise UserError(f'--overlap {overlap} is of tiles: give --tile as well')
        return 0
    if tile < 16:
        raise UserError(f'--tile {tile} must be 16 or more')
    overlap = tile // 8 if overlap is None else overlap
    if not 0 <= overlap < tile:
        raise UserError(f'--overlap {overlap} must be 0 or more and less than --tile {tile}')
    return overlap


def for_tiles(cfg: Config) -> None:
    """Fit a config to tiles, which keep the resolution of their picture: no ``Resize``.

    ``test_cfg`` of the model stays: where it is ``slide``, windows slide within each tile.

    Args:
        cfg: Changed in place.

    Raises:
        UserError: If it is no segmentation config.
    """
    if cfg.get('default_scope') != 'mmseg':
        raise UserError(
            f'--tile is for segmentation, {cfg.filename} is for {cfg.get("default_scope")}: leave '
            '--tile and --overlap out, or cut the picture into files'
        )
    dataset = cfg.test_dataloader.dataset
    dataset.pipeline = [step for step in dataset.pipeline if step['type'] not in RESIZING]
