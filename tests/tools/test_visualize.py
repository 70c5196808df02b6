from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tiny_run import exit_code, load_tool, write_config
from vit5_dense.building import build_model
from vit5_dense.config import load_config

Visualize = Callable[..., int]


def with_weights(folder: Path, detector: bool = False) -> tuple[Path, Path]:
    """A config and a checkpoint of a tiny model with random weights."""
    config = write_config(folder, folder, detector=detector)
    torch.save(build_model(load_config(str(config))).state_dict(), folder / 'model.pth')
    return config, folder / 'model.pth'


@pytest.fixture(scope='module')
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return with_weights(tmp_path_factory.mktemp('model'))


@pytest.fixture
def visualize(model: tuple[Path, Path], tmp_path: Path) -> Visualize:
    """The exit code for some pictures; sheets go to ``tmp_path/out``."""

    def call(*argv: object) -> int:
        return exit_code('visualize', *model, *argv, '--out', tmp_path / 'out')

    return call


def save(path: Path, height: int = 64, width: int = 96) -> Path:
    path.parent.mkdir(exist_ok=True)
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(noise).save(path)
    return path


def sheets(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / 'out').iterdir())


def sheet(folder: Path, name: str) -> np.ndarray:
    """A sheet in gray; nothing in it touches an edge."""
    image = np.asarray(Image.open(folder / 'out' / name).convert('L'))
    assert image.std() > 30, 'it is empty'
    assert np.concatenate((image[0], image[-1], image[:, 0], image[:, -1])).min() == 255
    return image


def test_every_picture_gets_a_sheet_and_bad_ones_are_named(
    visualize: Visualize, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A row for each block: 110 px an inch, panels of 2.3 x 1.5 inches."""
    save(tmp_path / 'in' / 'a.png')
    (tmp_path / 'in' / 'b.jpg').write_text('hello')
    line = save(tmp_path / 'in' / f'{"long_" * 40}.png', 40, 1)
    assert visualize(tmp_path / 'in', '--blocks', 0, -1) == 1
    captured = capsys.readouterr()
    assert sheets(tmp_path) == ['a.png', line.name]
    assert len(sheet(tmp_path, 'a.png')) == pytest.approx(110 * (2 * 1.83 + 1.6), abs=2)
    sheet(tmp_path, line.name)
    assert '2 of 3 pictures done' in captured.out
    errors = [line for line in captured.err.splitlines() if line.startswith('error: ')]
    assert len(errors) == 1
    assert 'b.jpg cannot be read' in errors[0]


def test_a_detector_is_seen_with_its_objects(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = with_weights(tmp_path_factory.mktemp('det'), detector=True)
    argv = [*model, save(tmp_path / 'a.png'), '--out', tmp_path / 'out', '--blocks', 1]
    assert exit_code('visualize', *argv, '--score-thr', 0) == 0
    assert len(sheet(tmp_path, 'a.png')) == pytest.approx(110 * (1.83 + 1.6), abs=2)


@pytest.mark.parametrize(
    ('options', 'part'),
    [
        (('--blocks', 0, 2), '--blocks [0, 2] must be block numbers from -2 to 1'),
        (('--blocks', 1, 0), 'ascending'),
        (('--patch', 2, 0), 'has 2 rows and 3 columns of patches: name 0 0 to 1 2'),
        (('--patch', -1, 0), '--patch -1 0'),
        (('--point', 40, 33), 'has 40 x 33 pixels: name 0 0 to 39 32'),
        (('--point', 0, -1), '--point 0 -1'),
        (('--score-thr', 2), '--score-thr 2.0'),
        (('--device', 'nope'), 'nope'),
    ],
)
def test_wrong_options_are_refused_before_any_work(
    visualize: Visualize,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    options: tuple[object, ...],
    part: str,
) -> None:
    """The first picture is large enough, the second is not; the third is broken."""
    save(tmp_path / 'in' / 'a.png')
    save(tmp_path / 'in' / 'b.png', *((33, 40) if '--point' in options else (32, 48)))
    (tmp_path / 'in' / 'c.png').write_text('no picture')
    assert visualize(tmp_path / 'in', *options) == 2
    error = capsys.readouterr().err
    assert part in error
    assert 'Traceback' not in error
    assert not (tmp_path / 'out').exists()


def test_a_patch_and_a_point_at_once_are_refused(visualize: Visualize, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        visualize(save(tmp_path / 'a.png'), '--patch', 0, 0, '--point', 0, 0)


@pytest.mark.parametrize(
    ('options', 'patch'),
    [
        ((), (2, 5)),  # pixel 50 of 100 and 100 of 200
        (('--point', '0', '0'), (0, 0)),
        (('--point', '199', '99'), (4, 9)),
        (('--point', '160', '21'), (1, 8)),
        (('--patch', '1', '3'), (1, 3)),
    ],
)
def test_points_are_pixels_of_the_file(options: tuple[str, ...], patch: tuple[int, int]) -> None:
    """The file has 100 x 200 pixels; the model sees 80 x 160, which is 5 x 10 patches."""
    tool = load_tool('visualize')
    args = tool.parse_args(['config', 'checkpoint', 'a.png', '--out', 'out', *options])
    file, view = np.zeros((100, 200, 3)), np.zeros((80, 160, 3))
    assert tool.pick_patch(args, 'a.png', file, view, 16) == patch
