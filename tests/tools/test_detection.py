"""The tools on a detector: train, test, infer."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip('mmcv._ext')

from pycocotools.mask import decode

from tiny_run import Run, call, exit_code, forget_runs, trained, write_config
from vit5_dense.checkpoint_io import read_file
from vit5_dense.config import fit_machine, load_config
from vit5_dense.datasets.shapes import THING_CLASSES
from vit5_dense.inference import Detector


@pytest.fixture(scope='module')
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory, detector=True)


def test_training_scores_boxes_and_masks_and_draws_a_report(run: Run) -> None:
    assert {'coco/bbox_mAP', 'coco/segm_mAP', 'coco/segm_AR_l@100'} <= set(run.scores)
    assert Image.open(run.config.parent / 'work' / 'report.png').size[1] == 324 * 3
    meta = read_file(run.checkpoint)['meta']['dataset_meta']  # weights_only=True
    assert meta['classes'] == THING_CLASSES
    assert meta['category_ids'] == (1, 2, 3, 4, 5, 6)
    assert 'ann_file' not in meta


@pytest.mark.parametrize('tta', [False, True], ids=['plain', 'tta'])
def test_testing_gives_the_figures_and_a_row_for_each_class(
    run: Run, tmp_path: Path, tta: bool, capsys: pytest.CaptureFixture
) -> None:
    options = ['--tta'] if tta else []
    scores = call('test', run.config, run.checkpoint, '--work-dir', tmp_path, *options)
    written = json.loads((tmp_path / 'scores.json').read_text())
    assert [row['class'] for row in written['classes']] == list(THING_CLASSES)
    assert {name: written[name] for name in scores} == scores
    assert len([name for name in scores if name.startswith('coco/')]) == 24
    output = capsys.readouterr().out
    assert output.count('Average Precision') == 12
    assert output.count('Average Recall') == 12
    assert 'segm: AP 0.' in output
    if not tta:
        last = {name: run.scores[name] for name in scores}
        assert scores == pytest.approx(last, abs=1e-4), 'as in the validation while training'


def test_predictions_of_pictures_without_labels_have_the_ids_of_the_file(
    run: Run, tmp_path: Path
) -> None:
    data = json.loads((run.data / 'instances_val.json').read_text())
    for entry in data['categories']:
        entry['id'] += 10
    del data['annotations']
    (tmp_path / 'pictures.json').write_text(json.dumps(data))
    config = write_config(
        tmp_path,
        run.data,
        f"test_dataloader['dataset'].update(ann_file={str(tmp_path / 'pictures.json')!r})\n",
        detector=True,
    )
    out = tmp_path / 'out'
    assert call('test', config, run.checkpoint, '--format-only', '--out', out) == {}
    for kind in ('bbox', 'segm'):
        entries = json.loads((out / f'predictions.{kind}.json').read_text())
        assert {entry['image_id'] for entry in entries} == {1, 2, 3}
        assert {entry['category_id'] for entry in entries} <= set(range(11, 17))


def test_infer_draws_objects_and_writes_coco_results(run: Run, tmp_path: Path) -> None:
    folder = run.data / 'images' / 'val'
    (tmp_path / 'broken.png').write_text('no picture')
    code = exit_code(
        'infer', run.config, run.checkpoint, folder, tmp_path / 'broken.png',
        '--out', tmp_path / 'out', '--score-thr', '0.0',
    )  # fmt: skip
    assert code == 1
    drawn = sorted((tmp_path / 'out' / 'overlays').iterdir())
    assert [path.stem for path in drawn] == ['000001', '000002', '000003']
    for path in drawn:
        picture = np.asarray(Image.open(folder / path.name))
        assert picture.shape == np.asarray(Image.open(path)).shape
        assert (picture != np.asarray(Image.open(path))).any()
    entries = json.loads((tmp_path / 'out' / 'results.json').read_text())
    assert {entry['image_id'] for entry in entries} == {1, 2, 3}
    assert {entry['file_name'] for entry in entries} == {path.name for path in drawn}
    detector = Detector(load_config(str(run.config)), run.checkpoint)
    found = detector(np.asarray(Image.open(folder / '000002.png').convert('RGB')))
    mine = [entry for entry in entries if entry['image_id'] == 2]
    assert len(mine) == len(found) > 0
    for entry, box, label, score, mask in zip(
        mine, found.boxes, found.labels, found.scores, found.masks, strict=True
    ):
        left, top, width, height = entry['bbox']
        assert np.allclose((left, top, left + width, top + height), box, atol=1e-3)
        assert entry['category_id'] == label + 1
        assert entry['score'] == pytest.approx(float(score), abs=1e-5)
        assert (decode(entry['segmentation']).astype(bool) == mask).mean() > 0.999


def test_infer_sees_a_picture_as_the_test_does(run: Run, tmp_path: Path) -> None:
    out = tmp_path / 'out'
    call('test', run.config, run.checkpoint, '--format-only', '--out', out)
    tested = json.loads((out / 'predictions.bbox.json').read_text())
    detector = Detector(load_config(str(run.config)), run.checkpoint)
    picture = Image.open(run.data / 'images' / 'val' / '000001.png').convert('RGB')
    found = detector(np.asarray(picture))
    scores = [entry['score'] for entry in tested if entry['image_id'] == 1]
    assert scores == pytest.approx(found.scores.tolist(), abs=1e-5)


@pytest.mark.parametrize('size', [(1, 1), (15, 40), (333, 500)])
def test_pictures_of_any_size_are_taken(run: Run, size: tuple[int, int]) -> None:
    detector = Detector(load_config(str(run.config)), run.checkpoint)
    found = detector(np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8))
    assert found.masks.shape == (len(found), *size)
    assert np.isfinite(found.boxes).all()


def test_a_batch_without_objects_reaches_every_parameter(run: Run, tmp_path: Path) -> None:
    """Else DDP would wait for gradients that never come."""
    from vit5_dense.building import build_runner

    data = json.loads((run.data / 'instances_train.json').read_text())
    data['annotations'] = data['annotations'][:1]
    (tmp_path / 'few.json').write_text(json.dumps(data))
    extra = f"""
train_dataloader['dataset'].update(
    ann_file={str(tmp_path / 'few.json')!r}, filter_cfg=dict(_delete_=True)
)
"""
    cfg = load_config(str(write_config(tmp_path, run.data, extra, detector=True)))
    cfg.work_dir, cfg.launcher = str(tmp_path / 'work'), 'none'
    fit_machine(cfg)
    forget_runs()
    runner = build_runner(cfg, train=True)
    dataset = runner.train_dataloader.dataset
    empty = [
        item
        for item in (dataset[i] for i in range(len(dataset)))
        if not len(item['data_samples'].gt_instances)
    ][:2]
    assert len(empty) == 2
    batch = {key: [item[key] for item in empty] for key in empty[0]}
    batch = runner.model.data_preprocessor(batch, True)
    losses, _ = runner.model.parse_losses(runner.model(**batch, mode='loss'))
    losses.backward()
    assert torch.isfinite(losses)
    assert [n for n, p in runner.model.named_parameters() if p.grad is None] == []


def test_a_head_for_other_classes_is_refused_before_training(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for head in ('bbox_head', 'mask_head'):
        config = write_config(
            tmp_path, run.data, f"model['roi_head']['{head}'].update(num_classes=80)\n",
            detector=True,
        )  # fmt: skip
        assert exit_code('train', config, '--work-dir', tmp_path / 'work') == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert f'{head}.num_classes is 80, but the data set has 6 classes' in error
