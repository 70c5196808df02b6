"""One picture of all that a ViT-5 sees in a picture: a row for each block."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

from .maps import COLOURS, Seen, cover, heat

matplotlib.use('agg')  # files only: works without a display
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.layout_engine import ConstrainedLayoutEngine

SIDE = 2.3  # inches of the longer side of a panel
SHORTEST = 0.45  # the least shorter side as a share of it: a line of a picture has white around it


def mark(axes: Axes, patch: tuple[int, int], size: int, ring: bool) -> None:
    """Frame a patch of ``size`` pixels, and draw a ring around it where it is small."""
    top, left = patch[0] * size, patch[1] * size
    for color, width in (('black', 2.5), ('white', 1.2)):  # seen on any ground
        axes.add_patch(
            plt.Rectangle((left, top), size, size, fill=False, color=color, linewidth=width)
        )
        if ring:
            middle = (left + size / 2, top + size / 2)
            axes.plot(*middle, 'o', ms=13, mew=width, mec=color, mfc='none', clip_on=False)


def draw_sheet(
    path: Path,
    title: str,
    picture: np.ndarray,
    seen: Seen,
    patch: tuple[int, int],
    blocks: Sequence[int],
    prediction: np.ndarray,
) -> None:
    """Draw the sheet of a picture.

    Columns are the picture with the patch, the attention of the patch, of CLS, the mean of that of
    the registers (if there are any), the principal components and the prediction. Every attention
    has a scale of its own, from 0 to its largest value in the picture, which is written below it.

    Args:
        path: File to write.
        title: Written above.
        picture: As the model saw it, RGB, (H, W, 3), uint8.
        seen: What it saw.
        patch: Row and column.
        blocks: From 0; a row each.
        prediction: RGB picture of any size, drawn over the whole picture.
    """
    height, width = picture.shape[:2]
    registers = range(seen.num_registers)
    names = ['picture', 'attention\nof the patch', 'attention\nof CLS']
    if registers:
        names.append(f'attention of\n{seen.num_registers} registers')
    names += ['PCA of\nthe patches', 'prediction']
    frame = np.maximum([width, height], SHORTEST * max(width, height))  # of a panel, in pixels
    side, end = (frame - [width, height]) / 2  # margins
    panel = SIDE * frame / frame.max()
    rows, columns = len(blocks), len(names)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(columns * (panel[0] + 0.1) + 0.4, rows * (panel[1] + 0.3) + 1.6),
        squeeze=False,
        layout=ConstrainedLayoutEngine(compress=True, h_pad=0.07),
    )
    for line, block in zip(grid, blocks, strict=True):
        maps = [seen.attention(block, *patch), seen.cls_attention(block)]
        if registers:
            maps.append(np.mean([seen.register_attention(block, i) for i in registers], axis=0))
        colours = cover(seen.pca(block), (height, width), seen.patch_size, smooth=False)
        heated = [heat(picture, each, seen.patch_size) for each in maps]
        for axes, shown in zip(line, [picture, *heated, colours, prediction], strict=True):
            axes.imshow(shown, extent=(0, width, height, 0))
            axes.set(xticks=[], yticks=[], xlim=(-side, width + side))
            axes.set_ylim(height + end, -end)
        for axes in line[:2]:
            mark(axes, patch, seen.patch_size, seen.patch_size < frame.max() / 25)
        inside = slice(-(-height // seen.patch_size)), slice(-(-width // seen.patch_size))
        for axes, each in zip(line[1:], maps, strict=False):
            axes.set_xlabel(f'largest {100 * each[inside].max():.2g} %', fontsize=8)
        line[0].set_ylabel(f'block {block}', fontsize=10)
    for axes, name in zip(grid[0], names, strict=True):
        axes.set_title(name, fontsize=10)
    bar = figure.colorbar(
        ScalarMappable(cmap=COLOURS), ax=grid, location='bottom', shrink=0.6, aspect=60
    )
    bar.set_ticks([0, 1], labels=['0', 'largest'])
    bar.set_label('attention to each patch, mean of heads (and of registers)', fontsize=8)
    figure.suptitle('\n'.join(textwrap.wrap(title, int(11 * figure.get_figwidth()))), fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)
