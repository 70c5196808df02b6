from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tiny_run import Run, exit_code, trained, write_config
from vit5_dense import picture_run
from vit5_dense.building import build_model
from vit5_dense.config import load_config
from vit5_dense.inference import Segmenter
from vit5_dense.picture_files import unique_names
from vit5_dense.pictures import read_picture

Infer = Callable[..., int]


@pytest.fixture(scope='module')
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory)


@pytest.fixture
def infer(run: Run, tmp_path: Path) -> Infer:
    """The exit code for some pictures; results go to ``tmp_path/out``."""

    def call(*pictures: object, options: tuple[object, ...] = ()) -> int:
        argv = [run.config, run.checkpoint, *pictures, '--out', tmp_path / 'out', *options]
        return exit_code('infer', *argv)

    return call


def save(path: Path, height: int = 20, width: int = 30, mode: str = 'RGB') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(noise).convert(mode).save(path)
    return path


def read_label(path: Path) -> np.ndarray:
    return np.array(Image.open(path))


def results(folder: Path, kind: str = 'labels') -> list[str]:
    return sorted(path.name for path in (folder / 'out' / kind).iterdir())


def test_files_folders_and_globs_are_all_segmented_once(infer: Infer, tmp_path: Path) -> None:
    single = save(tmp_path / 'a.png')
    save(tmp_path / 'folder' / 'b.JPG')
    save(tmp_path / 'folder' / 'c.tif')
    (tmp_path / 'folder' / 'notes.txt').write_text('no picture, passed over')
    save(tmp_path / 'more' / 'd1.png')
    save(tmp_path / 'more' / 'e1.png')
    code = infer(single, single, tmp_path / 'folder', tmp_path / 'more' / 'd*.png')
    assert code == 0
    assert results(tmp_path) == ['a.png', 'b.png', 'c.png', 'd1.png']
    assert results(tmp_path, 'overlays') == results(tmp_path)


def test_batches_give_the_same_labels_and_the_rate_is_told(
    infer: Infer, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Sizes alternate, so that some batches are whole and some are cut short; one file is bad."""
    for number, (height, width) in enumerate([(40, 60), (40, 60), (40, 60), (60, 40), (40, 60)]):
        save(tmp_path / 'in' / f'{number}.png', height, width)
    (tmp_path / 'in' / '2b.png').write_text('no picture')
    labels = []
    for batch in (1, 2):
        assert infer(tmp_path / 'in', options=('--batch', batch)) == 1
        output = capsys.readouterr()
        assert '5 of 6 pictures done' in output.out
        assert 'pictures per second' in output.out
        assert '2b.png' in output.err
        files = sorted((tmp_path / 'out' / 'labels').iterdir())
        labels.append([read_label(file) for file in files])
        assert [label.shape for label in labels[-1]] == [(40, 60)] * 3 + [(60, 40), (40, 60)]
    for one, other in zip(*labels, strict=True):
        assert (one == other).mean() > 0.999


def test_label_files_hold_what_the_model_sees(infer: Infer, run: Run, tmp_path: Path) -> None:
    path = run.data / 'images' / 'val' / '000001.png'
    assert infer(path) == 0
    picture = read_picture(path)
    expected = Segmenter(load_config(str(run.config)), run.checkpoint)(picture)
    assert len(np.unique(expected)) > 1
    labels = Image.open(tmp_path / 'out' / 'labels' / '000001.png')
    assert labels.mode == 'L'
    np.testing.assert_array_equal(np.asarray(labels), expected + 1)  # 0 is unlabelled in this set
    overlay = Image.open(tmp_path / 'out' / 'overlays' / '000001.png')
    assert overlay.size[0] > picture.shape[1], 'a legend beside it'
    shown = np.asarray(overlay)[: picture.shape[0], : picture.shape[1]]
    assert (shown != picture).any()


def test_opacity_0_shows_the_picture(infer: Infer, tmp_path: Path) -> None:
    path = save(tmp_path / 'a.png')
    assert infer(path, options=('--opacity', 0)) == 0
    shown = np.asarray(Image.open(tmp_path / 'out' / 'overlays' / 'a.png'))
    np.testing.assert_array_equal(shown[:20, :30], read_picture(path))


@pytest.mark.parametrize(('height', 'width'), [(1, 1), (17, 3), (1, 50)])
def test_tiny_pictures_work(infer: Infer, tmp_path: Path, height: int, width: int) -> None:
    assert infer(save(tmp_path / 'a.png', height, width)) == 0
    assert Image.open(tmp_path / 'out' / 'labels' / 'a.png').size == (width, height)


@pytest.mark.parametrize('mode', ['L', 'LA', 'RGBA', 'P', '1', 'CMYK', 'I;16'])
def test_pictures_of_any_mode_work(infer: Infer, tmp_path: Path, mode: str) -> None:
    path = tmp_path / 'a.tif'
    if mode == 'I;16':
        Image.fromarray(np.full((20, 30), 4000, np.uint16)).save(path)
    else:
        save(path, mode=mode)
    assert infer(path) == 0
    assert Image.open(tmp_path / 'out' / 'labels' / 'a.png').size == (30, 20)


def test_a_turned_photo_gets_labels_as_a_person_sees_it(infer: Infer, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (40, 20)).save(tmp_path / 'a.jpg', exif=exif)
    assert infer(tmp_path / 'a.jpg') == 0
    assert Image.open(tmp_path / 'out' / 'labels' / 'a.png').size == (20, 40)


def test_unreadable_pictures_are_named_and_the_others_go_on(
    infer: Infer, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    save(tmp_path / 'in' / 'a.png')
    whole = save(tmp_path / 'in' / 'b.png', 200, 200).read_bytes()
    (tmp_path / 'in' / 'b.png').write_bytes(whole[:5000])
    (tmp_path / 'in' / 'c.jpg').write_text('hello')
    save(tmp_path / 'in' / 'd.png')
    assert infer(tmp_path / 'in') == 1
    captured = capsys.readouterr()
    assert results(tmp_path) == ['a.png', 'd.png']
    errors = [line for line in captured.err.splitlines() if line.startswith('error: ')]
    assert len(errors) == 2
    assert 'b.png cannot be read' in errors[0]
    assert 'c.jpg cannot be read' in errors[1]
    assert '2 of 4 pictures' in captured.out
    assert 'Traceback' not in captured.err


@pytest.mark.parametrize('fails', ['pipeline', 'model'])
def test_pictures_that_the_model_fails_on_are_named_and_the_others_go_on(
    infer: Infer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fails: str,
) -> None:
    """In a batch with others of its size."""
    for name in ('a.png', 'b.png', 'c.png', 'd.png'):
        save(tmp_path / 'in' / name)
    Image.new('RGB', (30, 20)).save(tmp_path / 'in' / 'b.png')
    kind = 'prepare' if fails == 'pipeline' else 'samples'
    real = getattr(Segmenter, kind)

    def fail_on_black(self: Segmenter, given: Any) -> Any:
        values = [given] if fails == 'pipeline' else [item['inputs'] for item in given]
        if any(value.max() == 0 for value in values):
            raise RuntimeError('black\nis no colour')
        return real(self, given)

    monkeypatch.setattr(Segmenter, kind, fail_on_black)
    assert infer(tmp_path / 'in', options=('--batch', 3)) == 1
    captured = capsys.readouterr()
    assert results(tmp_path) == ['a.png', 'c.png', 'd.png']
    assert '3 of 4 pictures' in captured.out
    (error,) = (line for line in captured.err.splitlines() if line.startswith('error: '))
    assert error.endswith('b.png: RuntimeError: black is no colour')


@pytest.mark.parametrize('options', [(), ('--tile', 64)], ids=['whole', 'tiles'])
def test_a_head_with_one_channel_gives_class_numbers(
    run: Run, tmp_path: Path, options: tuple[object, ...]
) -> None:
    head = """
head = dict(num_classes=2, out_channels=1, threshold=0.5)
model['decode_head'].update(head, loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=True))
model['auxiliary_head'].update(head, loss_decode=model['decode_head']['loss_decode'])
"""
    config = write_config(tmp_path, run.data, head, 'binary')
    meta = {'classes': ('a', 'b'), 'palette': [[255, 0, 0], [0, 255, 0]]}
    state = build_model(load_config(str(config))).state_dict()
    checkpoint = tmp_path / 'binary.pth'
    torch.save({'state_dict': state, 'meta': {'dataset_meta': meta}}, checkpoint)
    picture = save(tmp_path / 'a.png', 70, 90)
    argv = (config, checkpoint, picture, '--out', tmp_path / 'out', *options)
    assert exit_code('infer', *argv) == 0
    labels = read_label(tmp_path / 'out' / 'labels' / 'a.png')
    assert labels.shape == (70, 90)
    predictor = Segmenter(load_config(str(config)), checkpoint)
    found = predictor(read_picture(picture))
    assert found.dtype == np.int64
    assert set(np.unique(found)) <= {0, 1}


def test_pictures_of_one_name_keep_results_of_their_own(infer: Infer, tmp_path: Path) -> None:
    sizes = {'x/a.png': 10, 'x/a.jpg': 11, 'y/a.png': 12, 'y/b.png': 13}
    for name, height in sizes.items():
        save(tmp_path / name, height)
    assert infer(tmp_path / 'x', tmp_path / 'y') == 0
    heights = {Image.open(p).size[1] for p in (tmp_path / 'out' / 'labels').iterdir()}
    assert heights == set(sizes.values())
    assert 'b.png' in results(tmp_path)


def test_names_take_as_much_of_the_path_as_they_need() -> None:
    paths = [Path(p) for p in ('/r/x/a.png', '/r/y/a.png', '/r/y/a.jpg', '/r/y/b.png')]
    names = unique_names(paths)
    assert len(set(names.values())) == 4
    assert names[paths[3]] == 'b'
    assert all('/' not in name for name in names.values())


@pytest.mark.parametrize(
    ('options', 'part'),
    [
        (('--opacity', '1.5'), '--opacity 1.5'),
        (('--opacity', '-1'), '--opacity -1'),
        (('--batch', '0'), '--batch 0'),
        (('--device', 'nope'), 'nope'),
        (('--device', 'cuda:77'), 'cuda:77'),
    ],
)
def test_wrong_options_are_refused(
    infer: Infer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    options: tuple[str, ...],
    part: str,
) -> None:
    assert infer(save(tmp_path / 'a.png'), options=options) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ')
    assert part in error


def test_patterns_without_a_picture_are_refused(
    infer: Infer, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / 'empty').mkdir()
    for pattern in (tmp_path / 'empty', tmp_path / 'none*.png', tmp_path / 'no.png'):
        assert infer(pattern) == 2
        assert str(pattern) in capsys.readouterr().err
    assert not (tmp_path / 'out').exists()


def test_a_wrong_checkpoint_or_place_is_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    picture = save(tmp_path / 'a.png')
    page = tmp_path / 'page.pth'
    page.write_text('<html>')
    assert exit_code('infer', run.config, page, picture, '--out', tmp_path / 'out') == 2
    assert str(page) in capsys.readouterr().err
    assert exit_code('infer', run.config, run.checkpoint, picture, '--out', page) == 2
    assert str(page) in capsys.readouterr().err


def test_every_nasty_picture_is_segmented_or_named(
    infer: Infer, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = shared / 'data' / 'nasty_images'
    if not folder.is_dir():
        pytest.skip(f'no {folder}')
    assert infer(folder) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith('error: ')]
    broken = ['mmcv_uint16-5channel.tif', 'test_3_bands_float32.tif']
    broken += ['truncated_image.png', 'truncated_jpeg.jpg']
    assert sorted(next(name for name in broken if name in line) for line in errors) == broken
    pictures = {p.name for p in folder.iterdir() if p.suffix != '.csv'}
    assert len(results(tmp_path)) == len(pictures) - len(broken)


def test_one_tile_gives_the_same_files_as_none(infer: Infer, run: Run, tmp_path: Path) -> None:
    path = run.data / 'images' / 'val' / '000001.png'
    files = [tmp_path / 'out' / kind / '000001.png' for kind in ('labels', 'overlays')]
    assert infer(path) == 0
    whole = [file.read_bytes() for file in files]
    assert infer(path, options=('--tile', 1024)) == 0
    assert [file.read_bytes() for file in files] == whole


def test_tiles_are_counted_over_all_pictures_and_batches_change_nothing(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = []

    class Spy(picture_run.Progress):
        def __exit__(self, *error: Any) -> None:
            tasks.extend(self.tasks)
            super().__exit__(*error)

    monkeypatch.setattr(picture_run, 'Progress', Spy)
    save(tmp_path / 'in' / 'a.png', 97, 131)  # 3 x 4 tiles
    save(tmp_path / 'in' / 'b.png', 20, 30)
    broken = save(tmp_path / 'in' / 'c.png', 200, 200)  # 6 x 6
    broken.write_bytes(broken.read_bytes()[:5000])
    labels = []
    for batch in (1, 4):
        argv = [run.config, run.checkpoint, tmp_path / 'in', '--out', tmp_path / 'out']
        options = ['--tile', 48, '--overlap', 12, '--batch', batch]
        assert exit_code('infer', *argv, *options) == 1
        assert '2 of 3 pictures done' in capsys.readouterr().out
        labels.append(read_label(tmp_path / 'out' / 'labels' / 'a.png'))
    assert [(task.completed, task.total) for task in tasks] == [(3 * 4 + 1 + 6 * 6,) * 2] * 2
    assert labels[0].shape == (97, 131)
    assert (labels[0] == labels[1]).mean() > 0.999


@pytest.mark.parametrize(
    ('options', 'part'),
    [
        (('--tile', 15), '--tile 15'),
        (('--tile', 64, '--overlap', 64), '--overlap 64'),
        (('--overlap', 8), '--tile'),
    ],
)
def test_wrong_tiles_are_refused(
    infer: Infer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    options: tuple[object, ...],
    part: str,
) -> None:
    assert infer(save(tmp_path / 'a.png'), options=options) == 2
    assert part in capsys.readouterr().err
    assert not (tmp_path / 'out').exists()


def test_tiles_of_a_detector_are_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config = write_config(tmp_path, run.data, detector=True)
    argv = [config, run.checkpoint, save(tmp_path / 'a.png'), '--out', tmp_path / 'out']
    assert exit_code('infer', *argv, '--tile', 64) == 2
    assert 'leave --tile' in capsys.readouterr().err


def test_logits_beyond_the_memory_are_refused_before_any_work(
    infer: Infer, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('vit5_dense.large_pictures.free_memory', lambda device: 2**20)
    save(tmp_path / 'in' / 'a.png')
    save(tmp_path / 'in' / 'b.png', 100, 200)  # 8 bytes x 20,000 pixels x 12 classes
    assert infer(tmp_path / 'in') == 2
    error = capsys.readouterr().err
    assert 'b.png' in error
    assert '--tile 1024' in error
    assert not list((tmp_path / 'out').iterdir())
    assert infer(tmp_path / 'in', options=('--tile', 64)) == 0
    assert infer(tmp_path / 'in', options=('--tile', 64, '--batch', 8)) == 2
    assert 'smaller --tile or --batch' in capsys.readouterr().err


def test_tiles_lift_the_limit_that_pillow_sets(
    infer: Infer, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / 'a.png')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 20 * 30 // 2 - 1)
    assert infer(path) == 1
    error = capsys.readouterr().err
    assert 'exceeds limit' in error
    assert '--tile 1024' in error
    assert infer(path, options=('--tile', 1024)) == 0
    assert infer(path) == 1, 'the limit is back'


def test_labels_of_a_huge_picture_are_whole_and_its_overlay_is_reduced(
    infer: Infer, tmp_path: Path
) -> None:
    path = save(tmp_path / 'a.png', 17, 8003)
    assert infer(path, options=('--tile', 512)) == 0
    assert Image.open(tmp_path / 'out' / 'labels' / 'a.png').size == (8003, 17)
    width, _ = Image.open(tmp_path / 'out' / 'overlays' / 'a.png').size
    assert 4002 < width < 4500, 'half, and a legend'


def test_deep_pictures_are_spoken_of(
    infer: Infer, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    Image.fromarray(np.full((20, 30), 4000, np.uint16)).save(tmp_path / 'deep.tif')
    Image.fromarray(np.full((20, 30), 0.5, np.float32)).save(tmp_path / 'float.tif')
    assert infer(tmp_path / 'deep.tif', tmp_path / 'float.tif') == 1
    captured = capsys.readouterr()
    assert f'divided by 256 in {tmp_path / "deep.tif"}' in captured.out
    assert 'float.tif cannot be read: it holds decimal numbers: write 8 bits' in captured.err
    assert results(tmp_path) == ['deep.png']
