import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tiny_run import exit_code

ROAD, ROOF, VOID, GRAY = (128, 64, 128), (220, 20, 60), (0, 0, 0), (7, 7, 7)
TABLE = {'road': ROAD, 'roof': ROOF, 'wall': GRAY, 'ignore': [VOID]}
NUMBERS = {ROAD: 0, ROOF: 1, GRAY: 2, VOID: 255}
Convert = Callable[..., int]


@pytest.fixture
def convert(tmp_path: Path) -> Convert:
    """The exit code for ``tmp_path/masks``; labels go to ``tmp_path/out``."""

    def call(*options: object, table: Any = TABLE) -> int:
        path = tmp_path / 'colors.json'
        path.write_text(table if isinstance(table, str) else json.dumps(table))
        argv = [tmp_path / 'masks', '--out', tmp_path / 'out', '--colors', path]
        return exit_code('convert_masks', *argv, *options)

    return call


def draw(colors: list[tuple[int, int, int]]) -> Image.Image:
    """A mask of 4 x 6 pixels: a column of each colour, the last one to the end."""
    pixels = [[colors[min(x, len(colors) - 1)] for x in range(6)] for _ in range(4)]
    return Image.fromarray(np.array(pixels, np.uint8))


def save(path: Path, picture: Image.Image, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **options)
    return path


def read(path: Path) -> np.ndarray:
    with Image.open(path) as file:
        assert file.mode == 'L'
        return np.array(file)


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file())


def expected(colors: list[tuple[int, int, int]]) -> list[list[int]]:
    return [[NUMBERS[colors[min(x, len(colors) - 1)]] for x in range(6)]] * 4


def refused(convert: Convert, capsys: pytest.CaptureFixture, *options: object, **more: Any) -> str:
    """The one line of the message."""
    assert convert(*options, **more) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize('suffix', ['png', 'bmp', 'tif', 'TIFF'])
def test_colours_become_the_places_of_their_classes(
    convert: Convert, tmp_path: Path, suffix: str
) -> None:
    colors = [ROOF, VOID, GRAY, ROAD]
    save(tmp_path / 'masks' / 'train' / f'a.{suffix}', draw(colors))
    (tmp_path / 'masks' / 'readme.txt').write_text('no mask, passed over')
    assert convert() == 0
    assert files(tmp_path / 'out') == ['classes.json', 'train/a.png']
    np.testing.assert_array_equal(read(tmp_path / 'out' / 'train' / 'a.png'), expected(colors))
    assert json.loads((tmp_path / 'out' / 'classes.json').read_text()) == {
        'classes': ['road', 'roof', 'wall'],
        'palette': [[128, 64, 128], [220, 20, 60], [7, 7, 7]],
    }


def palette_mask(path: Path, indices: list[int], **options: Any) -> Path:
    """A palette PNG: indices 0, 1, 2 show ROOF, ROAD, GRAY; it has other colours beyond them."""
    picture = Image.fromarray(np.array([indices] * 4, np.uint8), 'P')
    picture.putpalette([*ROOF, *ROAD, *GRAY, *[9] * 3 * 253])
    return save(path, picture, **options)


def test_palettes_are_looked_up_by_their_colours(convert: Convert, tmp_path: Path) -> None:
    palette_mask(tmp_path / 'masks' / 'a.png', [0, 1, 2, 1, 0])
    assert convert() == 0
    np.testing.assert_array_equal(read(tmp_path / 'out' / 'a.png'), [[1, 0, 2, 0, 1]] * 4)


def test_indices_are_kept_when_asked_for(convert: Convert, tmp_path: Path) -> None:
    palette_mask(tmp_path / 'masks' / 'a.png', [0, 1, 2, 1, 255])
    assert convert('--indices') == 0
    np.testing.assert_array_equal(read(tmp_path / 'out' / 'a.png'), [[0, 1, 2, 1, 255]] * 4)


def test_an_index_without_a_class_is_refused(
    convert: Convert, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = palette_mask(tmp_path / 'masks' / 'a.png', [0, 1, 3, 254])
    message = refused(convert, capsys, '--indices')
    assert f'{path}: index 3 is of no class' in message
    assert '4 pixels, the first at x 2, y 0, counted from 0 (1 more such values)' in message
    save(path, draw([ROAD]))
    assert 'has no palette' in refused(convert, capsys, '--indices')


def test_gray_pictures_are_colours_of_three_equal_parts(convert: Convert, tmp_path: Path) -> None:
    save(tmp_path / 'masks' / 'a.png', Image.new('L', (3, 2), 7))
    save(tmp_path / 'masks' / 'b.png', Image.new('1', (3, 2), 0))
    assert convert() == 0
    assert (read(tmp_path / 'out' / 'a.png') == 2).all()
    assert (read(tmp_path / 'out' / 'b.png') == 255).all()


def test_an_unknown_colour_is_named_and_nothing_is_written(
    convert: Convert, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    save(tmp_path / 'masks' / 'a.png', draw([ROAD]))
    picture = draw([ROAD])
    for x, y, color in ((5, 1, (1, 2, 3)), (0, 2, (1, 2, 3)), (1, 2, (0, 0, 1)), (1, 3, (1, 2, 3))):
        picture.putpixel((x, y), color)
    path = save(tmp_path / 'masks' / 'b.png', picture)
    message = refused(convert, capsys)
    assert f'{path}: colour [1, 2, 3] is of no class' in message
    assert '3 pixels, the first at x 5, y 1, counted from 0 (1 more such values)' in message
    assert files(tmp_path) == ['colors.json', 'masks/a.png', 'masks/b.png']
    assert list((tmp_path / 'out').iterdir()) == []


@pytest.mark.parametrize('kind', ['RGBA', 'palette', 'LA'])
def test_alpha_is_ignored_with_a_message(
    convert: Convert, tmp_path: Path, capsys: pytest.CaptureFixture, kind: str
) -> None:
    path = tmp_path / 'masks' / 'a.png'
    if kind == 'palette':
        palette_mask(path, [0, 1, 2, 1, 0], transparency=1)
        wanted = [[1, 0, 2, 0, 1]] * 4
    else:
        clear = draw([GRAY]).convert(kind)
        clear.putalpha(Image.new('L', clear.size, 0))
        save(path, clear)
        wanted = np.full((4, 6), 2)
    assert convert() == 0
    np.testing.assert_array_equal(read(tmp_path / 'out' / 'a.png'), wanted)
    assert 'alpha is ignored: 1 masks' in capsys.readouterr().out


def test_opaque_alpha_is_not_worth_a_message(
    convert: Convert, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    save(tmp_path / 'masks' / 'a.png', draw([ROAD, ROOF]).convert('RGBA'))
    assert convert() == 0
    np.testing.assert_array_equal(read(tmp_path / 'out' / 'a.png'), expected([ROAD, ROOF]))
    assert 'alpha is ignored' not in capsys.readouterr().out


def png16(channels: int) -> bytes:
    """A 16-bit PNG of one pixel, by hand: Pillow writes none with colours, and reads 8 bits."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
        )

    header = struct.pack('>IIBBBBB', 1, 1, 16, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    row = zlib.compress(b'\0' + b'\x07\x00' * channels)
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', row) + chunk(b'IEND', b'')


@pytest.mark.parametrize('channels', [1, 3, 4])
def test_16_bits_are_refused(
    convert: Convert, tmp_path: Path, capsys: pytest.CaptureFixture, channels: int
) -> None:
    (tmp_path / 'masks').mkdir()
    (tmp_path / 'masks' / 'a.png').write_bytes(png16(channels))
    assert 'a.png has 16 bits a channel' in refused(convert, capsys)


def test_other_kinds_of_pictures_are_refused(
    convert: Convert, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    save(tmp_path / 'masks' / 'a.tif', Image.fromarray(np.full((2, 2), 7, np.uint16)))
    assert 'a.tif has 16 bits' in refused(convert, capsys)
    save(tmp_path / 'masks' / 'a.tif', Image.new('CMYK', (2, 2)))
    assert 'mode CMYK' in refused(convert, capsys)


def test_a_broken_mask_is_named_and_nothing_is_written(
    convert: Convert, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    save(tmp_path / 'masks' / 'a.png', draw([ROAD]))
    noise = np.random.default_rng(0).integers(0, 255, (90, 90, 3), np.uint8)
    path = save(tmp_path / 'masks' / 'b.png', Image.fromarray(noise))
    path.write_bytes(path.read_bytes()[:900])
    assert f'{path} cannot be read' in refused(convert, capsys)
    path.write_text('hello')
    assert f'{path} cannot be read' in refused(convert, capsys)
    assert list((tmp_path / 'out').iterdir()) == []


def test_files_are_replaced_only_when_asked_for(
    convert: Convert, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    save(tmp_path / 'masks' / 'a.png', draw([ROAD]))
    assert convert() == 0
    save(tmp_path / 'masks' / 'a.png', draw([ROOF]))
    capsys.readouterr()
    assert f'{tmp_path / "out" / "a.png"} exists' in refused(convert, capsys)
    assert (read(tmp_path / 'out' / 'a.png') == 0).all()
    assert convert('--overwrite') == 0
    assert (read(tmp_path / 'out' / 'a.png') == 1).all()
    assert files(tmp_path / 'out') == ['a.png', 'classes.json']


def test_masks_are_never_written_over(
    convert: Convert, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = save(tmp_path / 'masks' / 'a.png', draw([ROAD]))
    before = path.read_bytes()
    for out in (tmp_path / 'masks', tmp_path / 'masks' / 'labels'):
        assert 'among the masks' in refused(convert, capsys, '--overwrite', '--out', out)
    assert path.read_bytes() == before
    assert files(tmp_path / 'masks') == ['a.png']


def test_folders_without_a_plain_answer_are_refused(
    convert: Convert, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert 'is no folder of masks' in refused(convert, capsys)
    (tmp_path / 'masks').mkdir()
    (tmp_path / 'masks' / 'a.jpg').write_text('JPEG changes colours')
    assert 'has no mask' in refused(convert, capsys)
    for name in ('a.png', 'a.bmp'):
        save(tmp_path / 'masks' / name, draw([ROAD]))
    assert 'would both become' in refused(convert, capsys)
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(
    ('table', 'part'),
    [
        ('{', 'cannot be read as JSON'),
        ('[["road", [1, 2, 3]]]', 'it must be'),
        ('7', 'it must be'),
        ('{"road": [1, 2, 3], "road": [1, 2, 4]}', "'road' twice"),
        ({}, '0 classes'),
        ({'ignore': [VOID]}, '0 classes'),
        ({'road': [1, 2]}, "'road' has [1, 2]"),
        ({'road': [1, 2, 256]}, "'road' has [1, 2, 256]"),
        ({'road': [1, 2, True]}, "'road' has [1, 2, True]"),
        ({'road': [1, 2, 3.0]}, "'road' has [1, 2, 3.0]"),
        ({'road': '#010203'}, "'road' has #010203"),
        ({'road': ROAD, 'ignore': VOID}, "'ignore' has 0"),
        ({'road': ROAD, 'ignore': 'black'}, '"ignore" is black'),
        ({'road': ROAD, 'roof': ROAD}, "'road' and 'roof' both have [128, 64, 128]"),
        ({'road': ROAD, 'ignore': [ROAD]}, "'road' and 'ignore' both have"),
        ({f'c{k}': [k % 256, k // 256, 0] for k in range(256)}, '256 classes'),
    ],
)
def test_a_wrong_table_is_refused(
    convert: Convert, tmp_path: Path, capsys: pytest.CaptureFixture, table: Any, part: str
) -> None:
    save(tmp_path / 'masks' / 'a.png', draw([ROAD]))
    message = refused(convert, capsys, table=table)
    assert 'colors.json' in message
    assert part in message
    assert not (tmp_path / 'out').exists()


def test_255_classes_are_told_apart(convert: Convert, tmp_path: Path) -> None:
    colors = np.array([[(k, 255 - k, 3 * k % 256) for k in range(255)]], np.uint8)
    save(tmp_path / 'masks' / 'a.png', Image.fromarray(colors))
    assert convert(table={f'c{k}': color for k, color in enumerate(colors[0].tolist())}) == 0
    np.testing.assert_array_equal(read(tmp_path / 'out' / 'a.png'), [range(255)])
