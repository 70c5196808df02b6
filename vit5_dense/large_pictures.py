"""What is to be known of a picture before it is read: its size, and whether memory is enough."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from .errors import UserError


class Head(NamedTuple):
    """What a picture file tells of itself before it is read.

    Attributes:
        height: In pixels, as stored.
        width: In pixels, as stored.
        deep: Whether it is gray of 16 bits or more.
    """

    height: int
    width: int
    deep: bool


def read_head(path: Path) -> Head | None:
    """What a picture file tells of itself; None where it cannot be read."""
    try:
        with Image.open(path) as file:
            return Head(file.height, file.width, file.mode.startswith('I'))
    except Exception:  # decoders raise anything; reading it whole tells why
        return None


@contextmanager
def pixel_limit(pixels: int) -> Iterator[None]:
    """Let Pillow read pictures up to this size, where its own limit is there against bombs."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = pixels // 2  # it warns above this, and refuses above twice as many
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def free_memory(device: str) -> int | None:
    """Bytes that can be had on a device; None where that is not known."""
    if device.startswith('cuda'):
        import torch  # exported models do without

        return torch.cuda.mem_get_info(torch.device(device).index)[0]  # older torch: no names
    meminfo = Path('/proc/meminfo')  # Linux
    if device != 'cpu' or not meminfo.is_file():
        return None
    lines = (line.split() for line in meminfo.read_text().splitlines())
    return next((1024 * int(line[1]) for line in lines if line[0] == 'MemAvailable:'), None)


def check_memory(
    heads: Mapping[Path, Head], classes: int, device: str, tile: int | None = None, batch: int = 1
) -> None:
    """Refuse pictures, or tiles of them, whose logits do not fit into memory.

    mmsegmentation holds them twice: summed up and divided, or before and after it resizes them.

    Args:
        heads: Of each picture.
        classes: Number of classes.
        device: That the model is on.
        tile: Side of a tile; None where pictures are segmented whole.
        batch: Tiles that are run together.

    Raises:
        UserError: With the picture, both amounts and what to do.
    """
    free = free_memory(device)
    for path, (height, width, _) in heads.items():
        rows, columns = (min(side, tile or side) for side in (height, width))
        together = batch if (rows, columns) != (height, width) else 1
        need = 2 * 4 * rows * columns * classes * together
        if free is not None and need > free:
            what = f'{together} tile(s)' if tile else 'a picture'
            raise UserError(
                f'{path}: the logits of {what} of {columns} x {rows} pixels and {classes} classes '
                f'need {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free on {device}: use '
                + ('a smaller --tile or --batch' if tile else 'tiles, as with --tile 1024')
            )
