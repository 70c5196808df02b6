import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from tiny_run import call, load_tool, scenes, write_config
from vit5_dense.hooks import ViT5ValLossHook
from vit5_dense.hooks.val_loss import labels_follow_resize, why_not

LOADED = "dict(type='LoadImageFromFile'), dict(type='Resize', scale=(64, 64), keep_ratio=True), "


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scenes(tmp_path_factory)


@HOOKS.register_module(force=True)
class NoteLosses(Hook):
    """Keeps the model's loss on the validation pictures, computed as in training."""

    found: dict[str, float]

    def after_val_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if batch_idx == 0:
            NoteLosses.found = {}
        model = runner.model
        with torch.no_grad():
            data = model.data_preprocessor(data_batch, True)
            _, losses = model.parse_losses(model._run_forward(data, mode='loss'))
        for name, value in losses.items():
            NoteLosses.found[name] = NoteLosses.found.get(name, 0) + value.item() / 3


def run(
    folder: Path, data: Path, pipeline: str = '', hook: str = 'ViT5ValLossHook', **kw: Any
) -> Any:
    """Rows of the log of two iterations and a validation, and the text of it."""
    extra = f"custom_hooks = _base_.custom_hooks + [dict(type='{hook}')]\n"
    extra += 'train_cfg.update(max_iters=2)\n' + pipeline
    work_dir = folder / hook
    tool = load_tool('train')
    tool.example_pictures = lambda runner: []  # which are not what is tested
    call(tool, write_config(folder, data, extra, **kw), '--work-dir', work_dir)
    (file,) = work_dir.glob('*/vis_data/scalars.json')
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return rows, ''.join(path.read_text() for path in work_dir.glob('*/*.log')), work_dir


def validation(rows: list[dict[str, float]]) -> dict[str, float]:
    (row,) = [row for row in rows if 'val/loss' in row]
    return row


def test_losses_of_a_segmentor_are_logged(tmp_path: Path, data: Path) -> None:
    """The crop of the data preprocessor is smaller than the pictures, so nothing is padded."""
    hooks = "custom_hooks += [dict(type='NoteLosses')]\n"
    rows, log, work_dir = run(tmp_path, data, hooks)
    losses = validation(rows)
    assert losses['step'] == 2
    assert set(losses) == {'val/loss', 'val/decode.loss_ce', 'val/aux.loss_ce', 'step'}
    assert math.isclose(losses['val/loss'], NoteLosses.found['loss'], rel_tol=1e-4)
    assert 'Validation losses: val/loss ' in log
    assert (work_dir / 'report.png').is_file()


def test_training_is_the_same_with_and_without(tmp_path: Path, data: Path) -> None:
    extra = 'train_cfg.update(val_interval=1)\n'
    both = []
    for hook in ('ViT5ValLossHook', 'ViT5StrictLoadHook'):
        rows = run(tmp_path, data, extra, hook)[0]
        both.append([row['loss'] for row in rows if 'loss' in row])
    assert len(both[0]) == 2
    assert both[0] == both[1]


def test_a_pipeline_without_labels_is_told_of_once(tmp_path: Path, data: Path) -> None:
    """The evaluator of this package's detectors reads the truth from its file."""
    pytest.importorskip('mmcv._ext', reason='detection needs the compiled ops of mmcv')
    meta = "meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')"
    steps = f"[{LOADED} dict(type='PackDetInputs', {meta})]"
    pipeline = f"val_dataloader['dataset'].update(pipeline={steps})\n"
    pipeline += (
        "train_cfg.update(val_interval=1)\ndefault_hooks['checkpoint'].update(save_best=None)\n"
    )
    rows, log, _ = run(tmp_path, data, pipeline, detector=True)
    assert log.count('No validation loss: ') == 1
    assert not any('val/loss' in row for row in rows)


def test_losses_of_a_detector_are_those_of_the_pictures_it_sees(tmp_path: Path, data: Path) -> None:
    """Labels loaded after Resize, in the size of the file, give what those before it give."""
    pytest.importorskip('mmcv._ext', reason='detection needs the compiled ops of mmcv')
    meta = "meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')"
    load = "dict(type='LoadAnnotations', with_bbox=True, with_mask=True)"
    resize = "dict(type='Resize', scale=(96, 96), keep_ratio=True)"  # of 160
    image, pack = "dict(type='LoadImageFromFile')", f"dict(type='PackDetInputs', {meta})"
    found = []
    for name, steps in (
        ('after', f'[{image}, {resize}, {load}, {pack}]'),
        ('before', f'[{image}, {load}, {resize}, {pack}]'),
    ):
        pipeline = f"val_dataloader['dataset'].update(pipeline={steps})\n"
        pipeline += "default_hooks['checkpoint'].update(save_best=None)\n"
        folder = tmp_path / name
        folder.mkdir()
        found.append(validation(run(folder, data, pipeline, detector=True)[0]))
    assert {'val/loss_cls', 'val/loss_bbox', 'val/loss_mask', 'val/loss_rpn_cls'} <= set(found[0])
    for key, value in found[0].items():
        assert math.isclose(value, found[1][key], rel_tol=0.02, abs_tol=1e-3), key


def test_the_mean_is_over_pictures_and_draws_no_random_numbers() -> None:
    logged: dict[str, float] = {}
    model = SimpleNamespace(
        data_preprocessor=lambda data, training: data,
        _run_forward=lambda data, mode: {'loss': data['inputs'] + 0 * torch.rand(()), 'acc': 1},
        parse_losses=lambda losses: (None, losses),
    )
    runner = SimpleNamespace(
        model=model,
        iter=7,
        val_dataloader=SimpleNamespace(dataset=None),
        visualizer=SimpleNamespace(add_scalars=lambda values, step: logged.update(values)),
    )
    hook = ViT5ValLossHook()
    state = torch.get_rng_state()
    for _ in range(2):  # the second epoch starts afresh
        hook.before_val_epoch(runner)
        for i, (loss, pictures) in enumerate(((1.0, 2), (4.0, 1))):
            batch = {'inputs': torch.tensor(loss), 'data_samples': [{'gt_sem_seg': 0}] * pictures}
            hook.after_val_iter(runner, i, batch)
        hook.after_val_epoch(runner)
        assert logged == {'val/loss': 2.0}
    assert torch.equal(torch.get_rng_state(), state)


def pipeline(*names: str) -> Any:
    return SimpleNamespace(transforms=[type(name, (), {})() for name in names])


def test_the_scale_of_labels_follows_from_the_order_of_the_pipeline() -> None:
    after = SimpleNamespace(pipeline=pipeline('LoadImageFromFile', 'Resize', 'LoadAnnotations'))
    before = SimpleNamespace(pipeline=pipeline('LoadImageFromFile', 'LoadAnnotations', 'Resize'))
    assert labels_follow_resize(after)
    assert not labels_follow_resize(before)


def test_what_cannot_be_scaled_is_refused() -> None:
    padding = SimpleNamespace(data_preprocessor=SimpleNamespace(test_cfg={'size_divisor': 32}))
    assert 'test_cfg' in why_not(padding, {'gt_sem_seg': 0}, None)
    sample = {'gt_instances': {'bboxes': 0}}
    assert 'no pipeline' in why_not(padding, sample, SimpleNamespace())
    assert 'loads no annotations' in why_not(padding, {}, None)
