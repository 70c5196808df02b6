"""Train, evaluate and look at results: the way a user goes, with the tools only."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tiny_run import REPO, call, exit_code, scenes, write_config

ADE = REPO / 'configs' / 'upernet_vit5_b_ade20k.py'
#: A base recipe cut down to a 4-block ViT-5 of width 32 and 64 px, as an own config would.
SMALL = f"""
_base_ = {str(ADE)!r}
crop_size = (64, 64)
model = dict(
    data_preprocessor=dict(size=crop_size),
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=32, depth=4, num_heads=2),
        out_indices=(0, 1, 2, 3),
    ),
    neck=dict(in_channels=32),
    decode_head=dict(in_channels=[32, 32, 32, 32], channels=8),
    auxiliary_head=dict(in_channels=32, channels=8),
    test_cfg=dict(crop_size=crop_size, stride=(42, 42)),
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='RandomResize', scale=(256, 64), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(256, 64), keep_ratio=True),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(num_workers=0, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(num_workers=0, dataset=dict(pipeline=test_pipeline, indices=3))
test_dataloader = val_dataloader
train_cfg = dict(max_iters=3, val_interval=3)
default_hooks = dict(logger=dict(interval=1))
"""


def test_a_model_learns_its_training_pictures(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Ground, sky and road are told apart after seconds; at the start all are guesses."""
    data = scenes(tmp_path_factory)
    extra = (
        'train_cfg.update(max_iters=100, val_interval=100)\ntrain_dataloader.update(batch_size=4)\n'
    )
    extra += "default_hooks['logger'].update(interval=10)\n"
    extra += 'optim_wrapper = dict(optimizer=dict(lr=1e-2))\n'
    extra += "param_scheduler = [dict(type='ConstantLR', factor=1.0, by_epoch=False)]\n"
    config = write_config(tmp_path, data, extra)
    scores = call('train', config, '--work-dir', tmp_path / 'work')
    assert scores['aAcc'] > 50
    assert scores['mIoU'] > 15  # one class everywhere would give about 3
    (log,) = (tmp_path / 'work').glob('*/vis_data/scalars.json')
    losses = [row['loss'] for row in map(json.loads, log.read_text().splitlines()) if 'loss' in row]
    assert losses[-1] < 0.75 * losses[0]
    # the model that test.py reads from the file is the one that was trained
    again = call('test', config, tmp_path / 'work' / 'iter_100.pth', '--work-dir', tmp_path)
    assert again['mIoU'] == pytest.approx(scores['mIoU'], abs=0.01)


def test_real_pictures_of_150_classes_go_all_the_way(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    root = shared / 'data' / 'ade20k_mini'
    if not root.is_dir():
        pytest.skip(f'no {root}')
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'mine.py').write_text(SMALL)
    options = [
        '--cfg-options',
        *(f'{s}_dataloader.dataset.data_root={root}' for s in ('train', 'val')),
    ]
    options.append(f'test_dataloader.dataset.data_root={root}')
    scores = call('train', 'mine.py', '--no-pretrained', *options)
    assert 0 <= scores['mIoU'] < 20
    checkpoint = tmp_path / 'work_dirs' / 'mine' / 'iter_3.pth'
    assert (checkpoint.parent / 'report.png').is_file()
    assert len(torch.load(checkpoint, weights_only=True)['meta']['dataset_meta']['classes']) == 150

    capsys.readouterr()
    scores = call('test', 'mine.py', checkpoint, *options)
    table = json.loads((checkpoint.parent / 'scores.json').read_text())['classes']
    assert len(table) == 150
    absent = sum(row['IoU'] is None for row in table)
    assert scores['classes_averaged'] == 150 - absent < 150
    assert f'over {150 - absent} classes' in capsys.readouterr().out

    pictures = root / 'images_unlabelled'
    assert exit_code('infer', 'mine.py', checkpoint, pictures, '--out', 'results') == 0
    found = sorted(pictures.glob('*.jpg'))
    assert found
    for path in found:
        labels = np.asarray(Image.open(tmp_path / 'results' / 'labels' / f'{path.stem}.png'))
        assert labels.shape == Image.open(path).size[::-1]
        assert 1 <= labels.min() <= labels.max() <= 150
