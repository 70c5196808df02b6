from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from vit5_dense.instance_pictures import caption, draw_instances, text_color
from vit5_dense.instances import Instances

CLASSES = ('cat', 'dog')
RED, BLUE, GRAY = [255, 0, 0], [0, 0, 255], [100, 100, 100]
#: Where nothing else is looked at.
CORNER = [0, 0, 1, 1]


def gray(height: int = 60, width: int = 120) -> np.ndarray:
    return np.full((height, width, 3), 100, np.uint8)


def objects(
    boxes: Sequence[Sequence[float]],
    labels: Sequence[int] | None = None,
    scores: Sequence[float] | None = None,
    masks: np.ndarray | None = None,
) -> Instances:
    return Instances(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array([0] * len(boxes) if labels is None else labels, np.int64),
        None if scores is None else np.array(scores, np.float32),
        masks,
    )


def drawn(found: Instances, picture: np.ndarray | None = None, opacity: float = 0.5) -> np.ndarray:
    """What is drawn on gray; the picture that came in stays as it was."""
    picture = gray() if picture is None else picture
    before = picture.copy()
    shown = draw_instances(picture, found, CLASSES, [RED, BLUE], opacity)
    np.testing.assert_array_equal(picture, before)
    assert (shown.shape, shown.dtype) == (picture.shape, np.uint8)
    return shown


def mask(rows: slice, columns: slice) -> np.ndarray:
    inside = np.zeros((60, 120), bool)
    inside[rows, columns] = True
    return inside


def outline(box: tuple[int, int, int, int], shape: tuple[int, int] = (60, 120)) -> np.ndarray:
    """The pixels on the border of a box, as far as the picture goes."""
    left, top, right, bottom = box
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    within = (rows > top) & (rows < bottom - 1) & (columns > left) & (columns < right - 1)
    return inside & ~within


def plate(text: str, x: int, y: int) -> np.ndarray:
    """The pixels behind a caption whose upper left corner is at (x, y); 9 is the least size."""
    font = ImageFont.load_default(size=9)
    width, height = int(np.ceil(font.getlength(text))) + 5, sum(font.getmetrics()) + 1
    return mask(slice(y, y + height), slice(x, x + width))


@pytest.mark.parametrize(
    ('opacity', 'color'),
    [
        (0.0, [100, 100, 100]),
        (0.25, [138, 75, 75]),  # 138.75 is cut off
        (0.5, [177, 50, 50]),
        (1.0, [255, 0, 0]),
    ],
)
def test_masks_have_their_share_of_the_colour(opacity: float, color: list[int]) -> None:
    inside = mask(slice(30, 50), slice(10, 90))
    shown = drawn(objects([CORNER], masks=inside[None]), opacity=opacity)
    assert np.unique(shown[inside], axis=0).tolist() == [color]
    rest = ~inside & ~plate('cat', 0, 0)
    assert np.unique(shown[rest], axis=0).tolist() == [GRAY]


def test_the_more_certain_of_two_masks_hides_the_other() -> None:
    masks = np.stack([mask(slice(20, 40), slice(0, 50)), mask(slice(30, 50), slice(0, 50))])
    shown = drawn(objects([CORNER] * 2, [0, 1], [0.9, 0.4], masks))
    assert [shown[row, 25].tolist() for row in (25, 35, 45)] == [[177, 50, 50]] * 2 + [
        [50, 50, 177]
    ]
    shown = drawn(objects([CORNER] * 2, [1, 0], [0.9, 0.4], masks))
    assert shown[35, 25].tolist() == [50, 50, 177]


def test_the_more_certain_of_two_boxes_is_on_top() -> None:
    crossing = [[10, 20, 60, 40], [10, 20, 90, 50]]
    shown = drawn(objects(crossing, [0, 1], [0.9, 0.4]))
    assert shown[20, 50].tolist() == RED
    assert shown[20, 70].tolist() == BLUE
    shown = drawn(objects(crossing[::-1], [1, 0], [0.9, 0.4]))
    assert shown[20, 50].tolist() == BLUE


@pytest.mark.parametrize(
    ('box', 'pixels', 'name_at'),
    [
        ([10, 20, 60, 50], (10, 20, 60, 50), (10, 8)),
        ([10.4, 19.6, 59.6, 50.4], (10, 20, 60, 50), (10, 8)),
        ([10, 5, 60, 50], (10, 5, 60, 50), (10, 5)),  # no room above
        ([0, 0, 120, 60], (0, 0, 120, 60), (0, 0)),
        ([-20, -10, 50, 40], (-20, -10, 50, 40), (0, 0)),
        ([110, 30, 150, 90], (110, 30, 150, 90), ('right', 18)),
        ([30, 40, 30, 40], (30, 40, 31, 41), (30, 28)),  # no area: one pixel
        ([30, 40, 50, 40], (30, 40, 50, 41), (30, 28)),
        ([200, 100, 220, 120], (200, 100, 220, 120), ('right', 'bottom')),
        ([-50, -50, -10, -10], (-50, -50, -10, -10), (0, 0)),
    ],
)
@pytest.mark.parametrize('score', [None, 0.874])
def test_nothing_but_box_and_name_is_painted(
    box: list[float], pixels: tuple[int, int, int, int], name_at: tuple, score: float | None
) -> None:
    """Names stay within the picture, whole."""
    text = 'cat' if score is None else 'cat 87'
    size = plate(text, 0, 0)
    x, y = (
        end - int(size.any(axis).sum()) if isinstance(place, str) else place
        for place, end, axis in zip(name_at, (120, 60), (0, 1), strict=True)
    )
    name = plate(text, x, y)
    assert name.sum() == size.sum()
    shown = drawn(objects([box], scores=None if score is None else [score]))
    border = outline(pixels)
    assert (shown[border & ~name] == RED).all()
    assert (shown[name] == RED).all(-1).mean() > 0.5
    assert (shown[name] > 150).all(-1).any(), 'white letters'
    assert (shown[~border & ~name] == 100).all()


@pytest.mark.parametrize(
    ('name', 'score', 'text'),
    [
        ('cat', 0.874, 'cat 87'),
        ('cat ', 1.0, 'cat 100'),
        ('traffic light', 0.004, 'traffic light 0'),
        (' cat ', None, 'cat'),
    ],
)
def test_a_caption_has_the_name_and_for_what_is_found_the_score(
    name: str, score: float | None, text: str
) -> None:
    assert caption(name, score) == text


@pytest.mark.parametrize(('scores', 'text'), [(None, 'dog'), ([0.5], 'dog 50')])
def test_the_caption_can_be_read(scores: list[float] | None, text: str) -> None:
    """Its letters are those that Pillow writes on such a plate."""
    shown = drawn(objects([[10, 30, 100, 50]], [1], scores))
    image = Image.fromarray(gray())
    draw = ImageDraw.Draw(image)
    where = plate(text, 10, 18)
    rows, columns = np.nonzero(where)
    draw.rectangle((10, 18, int(columns.max()), int(rows.max())), fill=tuple(BLUE))
    draw.text((12, 18), text, fill='white', font=ImageFont.load_default(size=9))
    np.testing.assert_array_equal(shown[where], np.asarray(image)[where])


@pytest.mark.parametrize('size', [60, 240, 480, 2000])
def test_letters_do_not_leave_their_plate(size: int) -> None:
    """Between the colour of the plate and the picture no letter is cut or spills."""
    names, palette = ['gjpqy(|'], [RED]
    picture = np.full((size, size, 3), 100, np.uint8)
    found = objects([[5, size // 2, size - 5, size - 5]])
    shown = draw_instances(picture, found, names, palette)
    colors = np.unique(shown[shown[..., 1] != 100].reshape(-1, 3), axis=0)
    assert (colors[:, 0] == 255).all(), 'only mixtures of red and white'


@pytest.mark.parametrize(
    ('color', 'text'),
    [
        ([0, 0, 0], 'white'),
        ([255, 255, 255], 'black'),
        (RED, 'white'),
        (BLUE, 'white'),
        ([0, 255, 0], 'black'),
        ([255, 255, 0], 'black'),
    ],
)
def test_letters_differ_from_their_plate(color: list[int], text: str) -> None:
    assert text_color(color) == text


@pytest.mark.parametrize('masks', [None, np.zeros((0, 60, 120), bool)], ids=['boxes', 'masks'])
def test_without_objects_the_picture_is_returned(masks: np.ndarray | None) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (60, 120, 3), np.uint8)
    np.testing.assert_array_equal(drawn(objects([], scores=[], masks=masks), picture), picture)
    np.testing.assert_array_equal(drawn(objects([], masks=masks), picture), picture)


@pytest.mark.parametrize('masks', [None, np.ones((1, 1, 1), bool)], ids=['box', 'mask'])
@pytest.mark.parametrize('box', [[0, 0, 1, 1], [0, 0, 0, 0], [-5, -5, 5, 5]], ids=str)
def test_a_picture_of_one_pixel(box: list[float], masks: np.ndarray | None) -> None:
    drawn(objects([box], scores=[0.5], masks=masks), gray(1, 1))
    assert drawn(objects([]), gray(1, 1)).tolist() == [[GRAY]]
