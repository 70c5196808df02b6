"""The error report of ``tools/test.py``, for a segmentor and for a detector."""

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tiny_run import Run, call, exit_code, trained, write_config

NO_LABELS = """
test_dataloader['dataset']['pipeline'] = [dict(type='LoadImageFromFile'), dict(type='{}')]
"""
LABELS_FIRST = """
test_dataloader['dataset']['pipeline'] = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale_factor=2.0),
    dict(type='PackDetInputs', meta_keys={{_base_.meta_keys}}),
]
"""


@pytest.fixture(scope='module')
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory)


@pytest.fixture(scope='module')
def detector(tmp_path_factory: pytest.TempPathFactory) -> Run:
    pytest.importorskip('mmcv._ext')
    return trained(tmp_path_factory, detector=True)


def read_matrix(path: Path) -> tuple[list[str], np.ndarray]:
    """Names and counts of a confusion matrix."""
    with path.open(newline='') as file:
        header, *rows = csv.reader(file)
    assert [row[0] for row in rows] == header[1:]
    return header[1:], np.array([[int(cell) for cell in row[1:]] for row in rows])


def refusal(capsys: pytest.CaptureFixture, *argv: object) -> str:
    assert exit_code('test', *argv) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith('error: ')]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize('options', [[], ['--tta']], ids=['plain', 'tta'])
def test_the_matrix_of_a_segmentor_gives_the_scores_of_the_run(
    run: Run, tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / 'r'
    argv = [run.config, run.checkpoint, '--work-dir', tmp_path, '--report', out, *options]
    scores = call('test', *argv)
    names, matrix = read_matrix(out / 'confusion.csv')
    right, union = [], []
    for i in range(len(names) - 1):
        right.append(matrix[i, i])
        union.append(sum(matrix[i]) + sum(matrix[:, i]) - matrix[i, i])
    ious = [100 * r / u for r, u in zip(right, union, strict=True) if u]
    assert scores['mIoU'] == pytest.approx(np.mean(ious), abs=0.01)
    assert scores['aAcc'] == pytest.approx(100 * sum(right) / matrix.sum(), abs=0.01)
    page = (out / 'report.html').read_text()
    assert f'>{scores["mIoU"]:g}<' in page
    assert 'iter_4.pth' in page
    assert len(list((out / 'worst').iterdir())) == 3
    assert len((out / 'pictures.csv').read_text().splitlines()) == 1 + 3
    assert str(out / 'report.html') in capsys.readouterr().out


@pytest.mark.parametrize('options', [[], ['--tta']], ids=['plain', 'tta'])
def test_the_matrix_of_a_detector_holds_all_labelled_objects(
    detector: Run, tmp_path: Path, options: list[str]
) -> None:
    argv = [detector.config, detector.checkpoint, '--work-dir', tmp_path]
    scores = call('test', *argv, '--report', tmp_path / 'r', *options)
    names, matrix = read_matrix(tmp_path / 'r' / 'confusion.csv')
    truth = json.loads((detector.data / 'instances_val.json').read_text())
    kinds = {entry['id']: entry['name'] for entry in truth['categories']}
    labelled = Counter(kinds[entry['category_id']] for entry in truth['annotations'])
    assert dict(zip(names, matrix.sum(1).tolist(), strict=True)) | {'background': 0} == {
        name: labelled[name] for name in names
    }
    page = (tmp_path / 'r' / 'report.html').read_text()
    assert f'>{scores["coco/segm_mAP"]:.3f}<' in page
    assert (tmp_path / 'r' / 'worst').is_dir()


def test_as_many_pictures_are_shown_as_are_asked_for(run: Run, tmp_path: Path) -> None:
    argv = [run.config, run.checkpoint, '--work-dir', tmp_path, '--report', tmp_path]
    call('test', *argv, '--report-pictures', '2')
    sheets = {path.stem for path in (tmp_path / 'worst').iterdir()}
    with (tmp_path / 'pictures.csv').open(newline='') as file:
        ranked = [row['name'] for row in csv.DictReader(file)]
    assert sheets == set(ranked[:2])
    assert len(ranked) == 3


def test_what_goes_against_a_report_is_refused_before_anything_is_read(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    argv = ['nope.py', run.checkpoint, '--report', tmp_path / 'r']
    error = refusal(capsys, *argv, '--format-only', '--out', tmp_path / 'o')
    assert 'leave out --format-only' in error
    assert 'leave out --launcher' in refusal(capsys, *argv, '--launcher', 'pytorch')
    assert not (tmp_path / 'r').exists()


def test_label_maps_that_are_not_there_are_named(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    rest = [run.checkpoint, '--work-dir', tmp_path, '--report', tmp_path / 'r']
    config = write_config(tmp_path, run.data, NO_LABELS.format('PackSegInputs'))
    assert 'put LoadAnnotations before PackSegInputs' in refusal(capsys, config, *rest)
    extra = "test_dataloader['dataset'].update(data_prefix=dict(img_path='images/val'))\n"
    config = write_config(tmp_path, run.data, extra.replace('dict(', 'dict(_delete_=True, '))
    assert 'seg_map_path' in refusal(capsys, config, *rest)


def test_objects_that_are_not_there_or_moved_are_named(
    detector: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    rest = [detector.checkpoint, '--work-dir', tmp_path, '--report', tmp_path / 'r']
    for extra, words in (
        (NO_LABELS.format('PackDetInputs'), 'put LoadAnnotations before'),
        (LABELS_FIRST, 'put LoadAnnotations after Resize'),
    ):
        config = write_config(tmp_path, detector.data, extra, detector=True)
        assert words in refusal(capsys, config, *rest)
    data = json.loads((detector.data / 'instances_val.json').read_text())
    (tmp_path / 'none.json').write_text(json.dumps({**data, 'annotations': []}))
    path = str(tmp_path / 'none.json')
    extra = f"test_dataloader['dataset'].update(ann_file={path!r})\n"
    config = write_config(tmp_path, detector.data, extra, detector=True)
    assert 'the test set has no objects' in refusal(capsys, config, *rest)
