import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tiny_run import Run, call, exit_code, load_tool, trained, write_config
from vit5_dense.datasets.shapes import CLASSES

TTA = """
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            [
                dict(type='Resize', scale_factor=ratio, keep_ratio=True)
                for ratio in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
            ],
            [dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)],
            [dict(type='LoadAnnotations', reduce_zero_label=True)],
            [dict(type='PackSegInputs')],
        ],
    ),
]
"""

# One set for each of two folders, in place of one set that finds both.
CONCAT = """
sets = [
    dict(
        type='BaseSegDataset',
        metainfo={{_base_.metainfo}},
        data_root=data_root,
        data_prefix=dict(img_path=f'images/val/{name}', seg_map_path='nope'),
        img_suffix='.png',
        pipeline={{_base_.test_pipeline}},
    )
    for name in ('north', 'south')
]
test_dataloader['dataset'] = dict(_delete_=True, type='ConcatDataset', datasets=sets)
"""


@pytest.fixture(scope='module')
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory)


@pytest.fixture
def folder_of_pictures(tmp_path: Path) -> Path:
    """Pictures of awkward sizes without labels."""
    folder = tmp_path / 'pictures'
    folder.mkdir()
    for height, width in ((97, 131), (3, 17), (1, 1), (1, 9), (9, 1)):
        noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
        Image.fromarray(noise).save(folder / f'{height}x{width}.png')
    return folder


def refusal(capsys: pytest.CaptureFixture, *argv: object) -> str:
    assert exit_code('test', *argv) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith('error: ')]
    assert len(lines) == 1
    return lines[0]


def test_scores_are_printed_returned_and_written(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    scores = call('test', run.config, run.checkpoint, '--work-dir', tmp_path)
    printed = capsys.readouterr().out
    written = json.loads((tmp_path / 'scores.json').read_text())
    assert scores['mIoU'] == pytest.approx(run.scores['mIoU'], abs=0.01), 'as after training'
    assert {key: written[key] for key in scores} == scores
    assert [row['class'] for row in written['classes']] == list(CLASSES)
    ious = [row['IoU'] for row in written['classes'] if row['IoU'] is not None]
    assert written['classes_averaged'] == len(ious)
    assert scores['mIoU'] == pytest.approx(sum(ious) / len(ious), abs=0.01)
    assert f'mIoU: {scores["mIoU"]:.2f} over {len(ious)} classes' in printed
    assert all(f' {name} ' in printed for name in CLASSES), 'a table'
    assert str(tmp_path / 'scores.json') in printed


def test_the_file_of_the_last_checkpoint_and_out_can_be_named(run: Run, tmp_path: Path) -> None:
    last = run.checkpoint.with_name('last_checkpoint')
    out = tmp_path / 'new' / 'mine.json'
    call('test', run.config, last, '--work-dir', tmp_path, '--out', out)
    assert 'mIoU' in json.loads(out.read_text())


def test_a_class_that_no_label_has_is_left_out_of_the_mean(run: Run, tmp_path: Path) -> None:
    """The prediction is all sky, the labels have sky and water only."""
    label = np.full((64, 64), 1 + CLASSES.index('sky'), np.uint8)
    label[32:] = 1 + CLASSES.index('water')
    for kind, content in (('images', np.zeros((64, 64, 3), np.uint8)), ('annotations', label)):
        (tmp_path / kind / 'val').mkdir(parents=True)
        Image.fromarray(content).save(tmp_path / kind / 'val' / 'a.png')
    state = torch.load(run.checkpoint, weights_only=True)
    state['state_dict']['decode_head.conv_seg.weight'].zero_()
    state['state_dict']['decode_head.conv_seg.bias'].copy_(torch.arange(12) == 0)
    torch.save(state, tmp_path / 'sky.pth')
    options = [f'test_dataloader.dataset.data_root={tmp_path}']
    scores = call('test', run.config, tmp_path / 'sky.pth', '--cfg-options', *options)
    assert scores['classes_averaged'] == 2
    assert scores['mIoU'] == 25.0  # sky 50 %, water 0 %
    rows = json.loads((tmp_path / 'scores.json').read_text())['classes']
    assert [row['IoU'] for row in rows] == [50.0, None, None, 0.0] + [None] * 8


def test_time_augmentation_scores_the_same_pictures(run: Run, tmp_path: Path) -> None:
    scores = call('test', run.config, run.checkpoint, '--work-dir', tmp_path, '--tta')
    assert 0 <= scores['mIoU'] <= 100
    options = ['tta_model=None']
    argv = [run.config, run.checkpoint, '--work-dir', tmp_path, '--tta', '--cfg-options', *options]
    assert exit_code('test', *argv) == 2


def test_predictions_are_drawn(run: Run, tmp_path: Path) -> None:
    show = tmp_path / 'show'
    call('test', run.config, run.checkpoint, '--work-dir', tmp_path, '--show-dir', show)
    assert len(list(show.rglob('*.png'))) == 3


@pytest.mark.parametrize('tta', [False, True], ids=['plain', 'tta'])
def test_pictures_without_labels_get_label_files(
    run: Run, tmp_path: Path, folder_of_pictures: Path, tta: bool
) -> None:
    if tta:  # mmsegmentation cannot flip what is one pixel wide
        for path in folder_of_pictures.glob('*1.png'):
            if path.stem != '97x131':
                path.unlink()
    config = write_config(tmp_path, tmp_path, TTA)
    options = ['test_dataloader.dataset.data_prefix.img_path=pictures']
    argv = [
        config,
        run.checkpoint,
        '--work-dir',
        tmp_path,
        '--format-only',
        '--out',
        tmp_path / 'o',
    ]
    assert call('test', *argv, *['--tta'] * tta, '--cfg-options', *options) == {}
    names = {path.name for path in folder_of_pictures.iterdir()}
    assert {path.name for path in (tmp_path / 'o').iterdir()} == names
    for name in names:
        label = np.asarray(Image.open(tmp_path / 'o' / name))
        size = Image.open(folder_of_pictures / name).size
        assert label.shape == size[::-1]
        assert 1 <= label.min() <= label.max() <= 12, 'counted from 1, as the labels of the set'


def two_folders(folder: Path, *names: str) -> list[Path]:
    """One small picture in each of two folders."""
    paths = [folder / 'images' / 'val' / place for place in ('north', 'south')]
    for path, name in zip(paths, names, strict=True):
        path.mkdir(parents=True)
        Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(path / name)
    return [path / name for path, name in zip(paths, names, strict=True)]


@pytest.mark.parametrize('extra', ['', CONCAT], ids=['sub folders', 'ConcatDataset'])
def test_pictures_whose_labels_would_be_one_file_are_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture, extra: str
) -> None:
    paths = two_folders(tmp_path, '1.png', '1.png')
    argv = [write_config(tmp_path, tmp_path, extra), run.checkpoint, '--work-dir', tmp_path]
    error = refusal(capsys, *argv, '--format-only', '--out', tmp_path / 'o')
    assert all(str(path) in error for path in paths)
    assert '1.png' in error
    assert list((tmp_path / 'o').iterdir()) == []


@pytest.mark.parametrize('extra', ['', CONCAT], ids=['sub folders', 'ConcatDataset'])
@pytest.mark.parametrize('options', [[], ['--tta']], ids=['plain', 'tta'])
def test_labels_of_several_folders_are_written_side_by_side(
    run: Run, tmp_path: Path, extra: str, options: list[str]
) -> None:
    two_folders(tmp_path, '1.png', '2.png')
    argv = [write_config(tmp_path, tmp_path, extra), run.checkpoint, '--work-dir', tmp_path]
    call('test', *argv, '--format-only', '--out', tmp_path / 'o', *options)
    assert {path.name for path in (tmp_path / 'o').iterdir()} == {'1.png', '2.png'}


def test_several_metrics_are_scored(run: Run, tmp_path: Path) -> None:
    """``test_evaluator`` may be a list; the table of classes is that of the first metric."""
    metrics = "test_evaluator = [dict(type='IoUMetric', iou_metrics=[m], prefix=m) for m in {}]\n"
    config = write_config(tmp_path, run.data, metrics.format(['mIoU', 'mDice']))
    argv = [config, run.checkpoint, '--work-dir', tmp_path / 'w']
    scores = call('test', *argv)
    assert scores['mIoU/mIoU'] == pytest.approx(run.scores['mIoU'], abs=0.01)
    assert scores['mDice/mDice'] > scores['mIoU/mIoU']
    assert 'IoU' in json.loads((tmp_path / 'w' / 'scores.json').read_text())['classes'][0]
    assert call('test', *argv, '--format-only', '--out', tmp_path / 'o') == {}
    assert len(list((tmp_path / 'o').iterdir())) == 3


def test_label_files_are_the_best_class_of_the_model(run: Run, tmp_path: Path) -> None:
    """Labels written with --format-only, scored by hand, give the tool's own scores."""
    argv = [run.config, run.checkpoint, '--work-dir', tmp_path]
    scores = call('test', *argv)
    call('test', *argv, '--format-only', '--out', tmp_path / 'o')
    right = total = 0
    for path in (tmp_path / 'o').iterdir():
        truth = np.asarray(Image.open(run.data / 'annotations' / 'val' / path.name))
        right += ((np.asarray(Image.open(path)) == truth) & (truth > 0)).sum()
        total += (truth > 0).sum()
    assert 100 * right / total == pytest.approx(scores['aAcc'], abs=0.01)


def test_a_wrong_checkpoint_is_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert 'nope.pth does not exist' in refusal(capsys, run.config, tmp_path / 'nope.pth')
    page = tmp_path / 'page.pth'
    page.write_text('<html>')
    assert str(page) in refusal(capsys, run.config, page)
    state = torch.load(run.checkpoint, weights_only=True)['state_dict']
    bare = {key: value for key, value in state.items() if key.startswith('backbone.')}
    torch.save(bare, tmp_path / 'bare.pth')
    assert exit_code('test', run.config, tmp_path / 'bare.pth', '--work-dir', tmp_path) == 2
    assert 'missing: neck.' in capsys.readouterr().err


def test_other_classes_than_the_checkpoints_are_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    names = ','.join('abc')
    options = ['model.decode_head.num_classes=3', 'model.auxiliary_head.num_classes=3']
    options += [f'test_dataloader.dataset.metainfo.classes=({names})']
    options += ['test_dataloader.dataset.metainfo.palette=[[0,0,0],[1,1,1],[2,2,2]]']
    argv = [run.config, run.checkpoint, '--work-dir', tmp_path, '--cfg-options', *options]
    assert exit_code('test', *argv) == 2
    error = capsys.readouterr().err
    assert 'decode_head.conv_seg.weight is (12, 8, 1, 1), wanted (3, 8, 1, 1)' in error


def test_missing_data_is_named_before_a_model_is_built(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool: Any = load_tool('test')
    monkeypatch.setattr(tool, 'build_runner', lambda *args, **_: pytest.fail('a model was built'))
    options = ['--cfg-options', f'test_dataloader.dataset.data_root={tmp_path}/nope']
    assert exit_code(tool, run.config, run.checkpoint, '--work-dir', tmp_path, *options) == 2
    error = capsys.readouterr().err
    assert f'{tmp_path}/nope/images/val does not exist' in error
    assert 'make_shapes.py' in error


def test_places_that_cannot_be_written_are_named_before_the_evaluation(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool: Any = load_tool('test')
    monkeypatch.setattr(tool, 'build_runner', lambda *args, **_: pytest.fail('a model was built'))
    argv = [run.config, run.checkpoint, '--work-dir', tmp_path]
    for out in (tmp_path, run.config / 'x.json'):
        assert exit_code(tool, *argv, '--out', out) == 2
        assert str(out if out == tmp_path else run.config) in capsys.readouterr().err
    assert exit_code(tool, *argv, '--format-only') == 2
    assert '--out' in capsys.readouterr().err
