import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tiny_run import exit_code, load_tool
from vit5_dense.app import require_gradio
from vit5_dense.app.inside import CLS, PATCH, PCA, inside, make_view, mark, patch_at, token_choices
from vit5_dense.app.results import class_rows, draw, object_rows, take
from vit5_dense.errors import UserError
from vit5_dense.health import MissingDependencyError
from vit5_dense.instance_pictures import draw_instances
from vit5_dense.instances import Instances


class Model:
    """Sees three classes in stripes, or two objects; counts how often it is asked."""

    classes = ('sky', 'grass ', '<b>road</b>')
    palette = ((0, 0, 255), (0, 255, 0), (90, 90, 90))

    def __init__(self, objects: bool = False) -> None:
        self.objects = objects
        self.runs = 0

    def __call__(self, picture: np.ndarray) -> Any:
        self.runs += 1
        height, width = picture.shape[:2]
        if not self.objects:
            return stripes(height, width)
        masks = np.zeros((2, height, width), bool)
        masks[0, :20, :10] = True
        masks[1, 20:25, 10:20] = True
        boxes = np.array([[0, 0, 10, 20], [10, 20, 20, 25]], np.float32)
        return Instances(boxes, np.array([1, 2]), np.array([0.9, 0.4], np.float32), masks)


def stripes(height: int, width: int) -> np.ndarray:
    """Half of class 2, a quarter of class 0, a quarter without a class."""
    labels = np.full((height, width), 2)
    labels[:, : width // 2] = 0
    labels[:, : width // 4] = 255
    return labels


def gray(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), 100, np.uint8)


@pytest.mark.parametrize(('height', 'width'), [(40, 80), (700, 800), (1000, 4004)])
def test_areas_are_those_of_the_picture_whatever_size_is_shown(height: int, width: int) -> None:
    model = Model()
    look = take(gray(height, width), stripes(height, width), 3)
    assert 0.9 * 640 / 2 < max(look.picture.shape) <= 2002
    assert look.picture.shape[:2] == look.found.shape
    rows = class_rows(look, model)
    assert [[row[0], *row[2:]] for row in rows] == [
        [2, '<b>road</b>', height * width // 2, 50.0],
        [0, 'sky', height * width // 4, 25.0],
    ]
    assert 'rgb(90,90,90)' in str(rows[0][1])


def test_a_class_is_drawn_alone_and_all_again() -> None:
    model, look = Model(), take(gray(640, 640), stripes(640, 640), 3)
    for only, road in ((None, (95, 95, 95)), (2, (95, 95, 95)), (0, (100, 100, 100))):
        drawn = draw(look, model, 0.5, only=only)
        assert tuple(drawn[0, -1]) == road
        assert tuple(drawn[0, 0]) == (100, 100, 100), 'no class'
    assert tuple(draw(look, model, 0.5, only=0)[0, 200]) == (50, 50, 177)
    assert tuple(draw(look, model, 1.0, only=0)[0, 200]) == (0, 0, 255)
    np.testing.assert_array_equal(draw(look, model, 0.0), look.picture)


@pytest.mark.parametrize(('side', 'scale'), [(160, 4), (700, 1), (4000, 1 / 2)])
def test_objects_are_listed_in_pixels_of_the_picture(side: int, scale: float) -> None:
    model = Model(objects=True)
    look = take(gray(side, side), model(gray(side, side)), 3)
    assert look.scale == scale
    rows = object_rows(look, model, 0.3)
    assert [[row[0], *row[2:]] for row in rows] == [
        [0, 'grass', 90.0, '0, 0, 10 x 20', 200],
        [1, '<b>road</b>', 40.0, '10, 20, 10 x 5', 50],
    ]
    assert [row[0] for row in object_rows(look, model, 0.5)] == [0]
    assert object_rows(look, model, 0.95) == []
    np.testing.assert_array_equal(look.found.boxes[0], np.array([0, 0, 10, 20]) * scale)
    assert look.found.masks[0].sum() == 200 * scale**2


def test_objects_are_drawn_above_the_score_or_one_alone() -> None:
    model = Model(objects=True)
    picture = gray(640, 640)
    found = model(picture)
    look = take(picture, found, 3)

    def expected(keep: list[int]) -> np.ndarray:
        some = Instances(
            found.boxes[keep], found.labels[keep], found.scores[keep], found.masks[keep]
        )
        return draw_instances(picture, some, model.classes, model.palette, 0.25)

    for score, only, keep in ((0.3, None, [0, 1]), (0.5, None, [0]), (0.3, 1, [1])):
        np.testing.assert_array_equal(draw(look, model, 0.25, score, only), expected(keep))


def test_objects_without_masks_have_an_empty_cell() -> None:
    found = Instances(np.array([[1.0, 2, 3, 4]]), np.array([0]), np.array([0.5]))
    look = take(gray(64, 64), found, 3)
    assert object_rows(look, Model(), 0.1)[0][-1] == ''
    assert draw(look, Model(), 0.5, only=0).shape == look.picture.shape


@pytest.mark.parametrize(('height', 'width'), [(1, 1), (1, 50), (17, 3)])
def test_tiny_pictures_can_be_shown(height: int, width: int) -> None:
    look = take(gray(height, width), np.zeros((height, width), int), 3)
    assert draw(look, Model(), 0.5).shape == look.picture.shape
    assert class_rows(look, Model())[0][3:] == [height * width, 100.0]


class Seen:
    """Two rows and three columns of patches of 16 px."""

    grid, depth, num_registers, patch_size = (2, 3), 5, 2, 16

    def attention(self, *args: int) -> np.ndarray:
        return np.array(args)

    def cls_attention(self, block: int) -> np.ndarray:
        return np.array([block, -1])

    def register_attention(self, block: int, index: int) -> np.ndarray:
        return np.array([block, index])

    def pca(self, block: int) -> np.ndarray:
        return np.array([block, -2])


def test_every_choice_asks_for_its_own_map() -> None:
    view = make_view(Seen(), gray(20, 40), gray(20, 40))
    choices = token_choices(2)
    assert choices == [PATCH, CLS, 'register 1', 'register 2', PCA]
    asked = [inside(view, what, 3, (1, 2)).tolist() for what in choices]
    assert asked == [[3, 1, 2], [3, -1], [3, 0], [3, 1], [3, -2]]


@pytest.mark.parametrize('side', [1, 30])
def test_the_patch_below_the_pointer_is_found_and_framed(side: int) -> None:
    """The picture is not of whole patches, and shown 16 or 480 times as large."""
    view = make_view(Seen(), gray(20, 40), gray(20 * side, 40 * side))
    grow = 640 // (40 * side) or 1
    assert view.picture.shape == (20 * side * grow, 40 * side * grow, 3)
    assert view.patch_size == 16 * grow
    for y, x, patch in ((0, 0, (0, 0)), (15, 16, (0, 1)), (16, 15, (1, 0)), (19, 39, (1, 2))):
        assert patch_at(view, x * grow, y * grow) == patch
    changed = (mark(view, (0, 1)) != view.picture).any(2)
    rows, columns = np.nonzero(changed)
    assert abs(columns.min() - 16 * grow) <= grow
    assert abs(columns.max() - (32 * grow - 1)) <= grow
    assert rows.min() == 0
    assert not changed[8 * grow, 24 * grow], 'the inside of the frame'


def test_a_missing_gradio_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, 'gradio', None)
    with pytest.raises(MissingDependencyError, match=r'pip install .*\[app\]'):
        require_gradio()
    assert exit_code('app', 'config.py', 'model.pth') == 2
    assert capsys.readouterr().err.startswith('error: the app needs gradio')


@pytest.mark.parametrize(
    ('argv', 'part'),
    [
        (('config.py',), 'name a CHECKPOINT'),
        (('model.onnx', 'model.pth'), 'leave out CHECKPOINT'),
        (('model.onnx', '--device', 'cpu'), 'leave out CHECKPOINT'),
        (('config.py', 'model.pth', '--port', '99999'), '--port 99999'),
        (('config.py', 'model.pth', '--host', '192.0.2.1'), '--host 192.0.2.1'),
        (('config.py', 'model.pth'), 'config.py does not exist'),
        (('none.ONNX',), 'there is no model file none.ONNX'),
    ],
)
def test_wrong_options_are_refused(
    argv: tuple[str, ...], part: str, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip('gradio')
    assert exit_code('app', *argv) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ')
    assert part in error


def test_a_port_in_use_is_refused_or_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = load_tool('app')
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f'--port {port} cannot be bound'):
            tool.free_port('127.0.0.1', port)
        monkeypatch.setattr(tool, 'PORTS', [port, 0])
        assert tool.free_port('127.0.0.1', None) != port


@pytest.mark.parametrize(
    ('host', 'loopback'),
    [
        ('127.0.0.1', True),
        ('::1', True),
        ('localhost', True),
        ('0.0.0.0', False),
        ('10.0.0.3', False),
    ],
)
def test_only_loopback_goes_without_a_note(host: str, loopback: bool) -> None:
    assert load_tool('app').is_loopback(host) is loopback


@pytest.fixture
def result_tab() -> Any:
    """Builder of the first tab for a model."""
    gradio = pytest.importorskip('gradio')
    from vit5_dense.app.result_tab import ResultTab

    def build(model: Model) -> ResultTab:
        with gradio.Blocks(analytics_enabled=False):
            return ResultTab(model, model.objects, 'cpu', gradio.State())

    return build


@pytest.mark.parametrize('objects', [False, True])
def test_the_model_runs_once_a_picture(result_tab: Any, tmp_path: Path, objects: bool) -> None:
    Image.fromarray(gray(40, 80)).save(tmp_path / 'a.png')
    model = Model(objects)
    tab = result_tab(model)
    _, status, picture, look, only, shown, rows = tab.drop(str(tmp_path / 'a.png'), 0.5, 0.3)
    assert 'a.png (80 x 40 pixels)' in status
    assert picture.shape == (40, 80, 3)
    assert only is None
    assert len(rows) == 2
    changes = [tab.draw(look, 1.0, 0.3, None), tab.change_score(look, 0.5, 0.95)[1]]
    row = SimpleNamespace(row_value=[str(rows[1][0]), '', ''])
    isolated = tab.isolate(look, 0.5, 0.3, row)
    assert isolated[0] == rows[1][0]
    changes.append(isolated[1])
    assert (changes[0] != shown).any()
    assert (changes[1] != shown).any() == objects
    assert (changes[2] != shown).any()
    np.testing.assert_array_equal(tab.show_all(look, 0.5, 0.3)[1], shown)
    assert model.runs == 1


@pytest.mark.parametrize(
    ('content', 'reason'),
    [(b'', 'no picture that Pillow knows'), (b'hello', 'no picture'), (None, 'truncated')],
)
def test_a_bad_picture_is_told_and_the_next_is_taken(
    result_tab: Any, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (90, 90, 3), np.uint8)
    good, bad = tmp_path / 'good.png', tmp_path / 'b&d.png'
    Image.fromarray(noise).save(good)
    bad.write_bytes(good.read_bytes()[:5000] if content is None else content)
    model = Model()
    tab = result_tab(model)
    status, *nothing, rows = tab.drop(str(bad), 0.5, 0.3)[1:]
    assert status.startswith('<span class="bad">b&amp;d.png cannot be read: ')
    assert reason in status
    assert str(tmp_path) not in status
    assert nothing == [None] * 4
    assert rows == []
    assert tab.draw(None, 0.5, 0.3, None) is None
    assert tab.change_score(None, 0.5, 0.3) == [None, None, []]
    assert model.runs == 0
    tab.drop(str(good), 0.5, 0.3)
    assert model.runs == 1


def test_too_large_a_picture_is_told_before_the_model_runs(
    result_tab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('vit5_dense.large_pictures.free_memory', lambda device: 2**10)
    Image.fromarray(gray(40, 80)).save(tmp_path / 'a.png')
    model = Model()
    status = result_tab(model).drop(str(tmp_path / 'a.png'), 0.5, 0.3)[1]
    assert 'a.png' in status
    assert 'GiB' in status
    assert model.runs == 0
