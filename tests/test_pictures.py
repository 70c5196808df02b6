import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit5_dense.errors import UserError
from vit5_dense.pictures import (
    SUFFIXES,
    colorize,
    overlay,
    read_picture,
    save_result,
    with_legend,
)

RED, GREEN, BLUE, WHITE, GRAY = (
    np.array(color, np.uint8)
    for color in ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (90, 90, 90))
)
#: What the EXIF standard lets a camera store, as a function of what a person is to see.
STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda seen: seen,
    2: lambda seen: seen[:, ::-1],
    3: lambda seen: seen[::-1, ::-1],
    4: lambda seen: seen[::-1],
    5: lambda seen: seen.swapaxes(0, 1),
    6: lambda seen: np.rot90(seen),  # held upright: the top of the scene is on the left
    7: lambda seen: seen[::-1, ::-1].swapaxes(0, 1),
    8: lambda seen: np.rot90(seen, -1),
}
PALETTE = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
CLASSES = ('cat', 'dog', 'tree')


def scene() -> np.ndarray:
    """A picture (4, 6, 3) whose corners differ."""
    picture = np.tile(GRAY, (4, 6, 1))
    picture[0, 0], picture[0, -1], picture[-1, 0], picture[-1, -1] = RED, GREEN, BLUE, WHITE
    return picture


def saved(path: Path, picture: Image.Image, **options: object) -> Path:
    picture.save(path, **options)
    return path


@pytest.mark.parametrize('orientation', STORED)
@pytest.mark.parametrize('suffix', ['png', 'webp', 'tif'])
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](scene())))
    options = {'lossless': True} if suffix == 'webp' else {}
    path = saved(tmp_path / f'a.{suffix}', stored, exif=exif, **options)
    np.testing.assert_array_equal(read_picture(path), scene())


def test_gray_becomes_three_equal_channels(tmp_path: Path) -> None:
    gray = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    picture = read_picture(saved(tmp_path / 'a.png', Image.fromarray(gray)))
    np.testing.assert_array_equal(picture, np.stack([gray] * 3, axis=-1))


def test_black_and_white_uses_the_whole_range(tmp_path: Path) -> None:
    bits = Image.fromarray(np.array([[0, 255]], np.uint8)).convert('1')
    assert read_picture(saved(tmp_path / 'a.png', bits)).tolist() == [[[0] * 3, [255] * 3]]


@pytest.mark.parametrize('alpha', [0, 128, 255])
def test_alpha_is_dropped(tmp_path: Path, alpha: int) -> None:
    rgba = np.dstack([scene(), np.full((4, 6), alpha, np.uint8)])
    np.testing.assert_array_equal(
        read_picture(saved(tmp_path / 'a.png', Image.fromarray(rgba))), scene()
    )
    gray = Image.fromarray(np.full((2, 2), 7, np.uint8))
    gray.putalpha(alpha)
    assert np.unique(read_picture(saved(tmp_path / 'b.png', gray))).tolist() == [7]


@pytest.mark.parametrize('suffix', ['png', 'gif', 'bmp'])
def test_palette_numbers_become_their_colours(tmp_path: Path, suffix: str) -> None:
    indices = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8), 'P')
    indices.putpalette([*RED, *GREEN, *BLUE])
    expected = [[RED.tolist(), GREEN.tolist()], [BLUE.tolist(), GREEN.tolist()]]
    assert read_picture(saved(tmp_path / f'a.{suffix}', indices)).tolist() == expected


def test_a_palette_with_transparency_keeps_its_colours(tmp_path: Path) -> None:
    indices = Image.fromarray(np.array([[0, 1]], np.uint8), 'P')
    indices.putpalette([*RED, *GREEN])
    path = saved(tmp_path / 'a.png', indices, transparency=b'\x00\x80')
    assert read_picture(path).tolist() == [[RED.tolist(), GREEN.tolist()]]


@pytest.mark.parametrize('suffix', ['tif', 'jpg'])
def test_cmyk_becomes_rgb(tmp_path: Path, suffix: str) -> None:
    inks = Image.new('CMYK', (8, 8), (0, 255, 255, 0))  # magenta and yellow make red
    picture = read_picture(saved(tmp_path / f'a.{suffix}', inks))
    assert picture.shape == (8, 8, 3)
    assert np.abs(picture.astype(int) - RED).max() < 8


@pytest.mark.parametrize('suffix', ['png', 'tif'])
def test_sixteen_bits_are_divided_by_256(tmp_path: Path, suffix: str) -> None:
    deep = np.array([[0, 255, 256, 300, 32768, 65535]], np.uint16)
    picture = read_picture(saved(tmp_path / f'a.{suffix}', Image.fromarray(deep)))
    assert picture.dtype == np.uint8
    assert picture[0, :, 0].tolist() == [0, 0, 1, 1, 128, 255]


def test_of_an_animation_the_first_frame_is_taken(tmp_path: Path) -> None:
    frames = [Image.new('RGB', (5, 4), tuple(map(int, color))) for color in (RED, BLUE)]
    frames[0].save(tmp_path / 'a.gif', save_all=True, append_images=frames[1:])
    assert np.unique(read_picture(tmp_path / 'a.gif').reshape(-1, 3), axis=0).tolist() == [
        RED.tolist()
    ]


@pytest.mark.parametrize('suffix', SUFFIXES)
def test_every_suffix_that_folders_are_searched_for_is_read(tmp_path: Path, suffix: str) -> None:
    path = saved(tmp_path / f'a{suffix}', Image.new('RGB', (1, 1), (255, 255, 255)))
    picture = read_picture(path)
    assert (picture.shape, picture.dtype, picture.min()) == ((1, 1, 3), np.uint8, 255)


def write_bad(folder: Path, kind: str) -> Path:
    """A file that is no whole picture."""
    rng = np.random.default_rng(0)
    whole = Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8))
    path = folder / f'{kind}.png'
    if kind == 'text':
        path.write_text('hello')
    elif kind == 'empty':
        path.touch()
    elif kind == 'folder':
        path.mkdir()
    elif kind.startswith('half'):
        whole.save(path, kind.removeprefix('half_'))
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


@pytest.mark.parametrize(
    'kind', ['text', 'empty', 'folder', 'missing', 'half_png', 'half_jpeg', 'half_bmp', 'half_gif']
)
def test_what_cannot_be_read_whole_is_named(tmp_path: Path, kind: str) -> None:
    path = write_bad(tmp_path, kind)
    with pytest.raises(UserError) as info:
        read_picture(path)
    message = str(info.value)
    assert str(path) in message
    assert 'cannot be read' in message
    assert '\n' not in message


def test_a_picture_of_absurd_size_is_named(tmp_path: Path) -> None:
    """A head that claims 60,000 x 60,000 pixels, as damaged files do."""
    path = saved(tmp_path / 'a.bmp', Image.new('RGB', (8, 8)))
    content = bytearray(path.read_bytes())
    content[18:26] = (60000).to_bytes(4, 'little') * 2
    path.write_bytes(content)
    with pytest.raises(UserError, match=r'a\.bmp'):
        read_picture(path)


def test_broken_camera_data_does_not_end_a_run(tmp_path: Path) -> None:
    """Orientation 6 beside a tag whose value has another type than the standard's."""
    entries = [(0x0112, 3, 1, 6), (0x9000, 4, 1, 0xFFFFFFFF), (0x8769, 2, 4, 0x41414141)]
    tiff = b'II*\x00\x08\x00\x00\x00' + len(entries).to_bytes(2, 'little')
    for tag, kind, count, value in sorted(entries):
        tiff += tag.to_bytes(2, 'little') + kind.to_bytes(2, 'little')
        tiff += count.to_bytes(4, 'little') + value.to_bytes(4, 'little')
    path = saved(
        tmp_path / 'a.jpg', Image.new('RGB', (8, 4)), exif=b'Exif\x00\x00' + tiff + b'\x00' * 4
    )
    try:
        assert read_picture(path).shape in [(8, 4, 3), (4, 8, 3)]
    except UserError as error:
        assert 'a.jpg' in str(error)  # noqa: PT017 - either is fine, another error is not


def test_every_real_picture_is_read_or_named(shared: Path) -> None:
    folder = shared / 'data' / 'nasty_images'
    if not folder.is_dir():
        pytest.skip(f'no {folder}')
    rows = list(csv.DictReader((folder / 'MANIFEST.csv').open()))
    assert {row['file'] for row in rows} == {p.name for p in folder.iterdir()} - {'MANIFEST.csv'}
    assert len(rows) > 20
    for row in rows:
        path = folder / row['file']
        if row['pil_load'] != 'ok':
            with pytest.raises(UserError, match=row['file']):
                read_picture(path)
            continue
        height, width = int(row['height']), int(row['width'])
        if row['exif_orientation'] in {'5', '6', '7', '8'}:
            height, width = width, height
        picture = read_picture(path)
        assert (picture.shape, picture.dtype) == ((height, width, 3), np.uint8), row['file']


def test_the_eight_orientations_of_one_photo_look_alike(shared: Path) -> None:
    folder = shared / 'data' / 'nasty_images'
    if not folder.is_dir():
        pytest.skip(f'no {folder}')
    upright = read_picture(folder / 'landscape_1.jpg').astype(int)
    for orientation in range(2, 9):
        turned = read_picture(folder / f'landscape_{orientation}.jpg').astype(int)
        assert np.abs(turned - upright).mean() < 20  # its number is written on it; wrong: over 50


def test_colours_follow_the_palette_and_none_is_black() -> None:
    labels = np.array([[0, 2, 3, 255]])
    assert colorize(labels, PALETTE).tolist() == [[[255, 0, 0], [0, 0, 255], [0, 0, 0], [0, 0, 0]]]
    assert colorize(np.array([[299, 300]]), [(1, 2, 3)] * 300).tolist() == [[[1, 2, 3], [0, 0, 0]]]


def test_an_overlay_blends_and_leaves_unlabelled_pixels_alone() -> None:
    picture = np.array([[[100, 100, 100], [10, 20, 30]]], np.uint8)
    mixed = overlay(picture, np.array([[0, 255]]), PALETTE, opacity=0.25)
    assert mixed.tolist() == [[[138, 75, 75], [10, 20, 30]]]
    for opacity, expected in ((0.0, [100, 100, 100]), (1.0, [255, 0, 0])):
        assert overlay(picture, np.array([[0, 0]]), PALETTE, opacity)[0, 0].tolist() == expected


def test_the_legend_shows_the_classes_present_the_largest_first() -> None:
    picture = np.zeros((60, 30, 3), np.uint8)
    labels = np.full((60, 30), 2)
    labels[:10], labels[10:12] = 0, 255
    shown = with_legend(picture, labels, CLASSES, PALETTE)
    assert shown.shape[0] == 60
    assert shown.shape[1] > 60
    np.testing.assert_array_equal(shown[:, :30], picture)
    legend = shown[:, 30:]
    rows = {}
    for name, color in zip(CLASSES, PALETTE, strict=True):
        where = np.flatnonzero((legend == color).all(-1).any(1))
        rows[name] = where.mean() if len(where) else None
    assert rows['tree'] < rows['cat']
    assert rows['dog'] is None
    assert (legend == 255).all(-1).any(), 'white paper'


@pytest.mark.parametrize('labels', [np.zeros((1, 1), int), np.full((1, 1), 255)])
def test_one_pixel_has_a_legend(labels: np.ndarray) -> None:
    shown = with_legend(np.zeros((1, 1, 3), np.uint8), labels, CLASSES, PALETTE)
    assert shown.ndim == 3
    assert shown.shape[1] > 1


def test_many_classes_make_the_legend_higher_than_the_picture() -> None:
    names = [f'class {i}' for i in range(40)]
    labels = np.arange(40).reshape(4, 10)
    shown = with_legend(np.zeros((4, 10, 3), np.uint8), labels, names, [(9, 9, 9)] * 40)
    assert shown.shape[0] > 40 * 10


@pytest.mark.parametrize(
    ('classes', 'offset', 'bits'), [(3, 0, 8), (255, 1, 8), (256, 0, 8), (256, 1, 16), (400, 0, 16)]
)
def test_label_files_hold_class_numbers(
    tmp_path: Path, classes: int, offset: int, bits: int
) -> None:
    labels = np.array([[0, classes - 1], [1, 2]])
    names, palette = ['x'] * classes, [(1, 2, 3)] * classes
    save_result(
        tmp_path / 'new', 'a', np.zeros((2, 2, 3), np.uint8), labels, names, palette, 0.5, offset
    )
    stored = Image.open(tmp_path / 'new' / 'labels' / 'a.png')
    assert ('I;16' in stored.mode or stored.mode == 'I') == (bits == 16)
    np.testing.assert_array_equal(np.asarray(stored), labels + offset)
    assert Image.open(tmp_path / 'new' / 'overlays' / 'a.png').size[0] > 2
