"""A tiny segmentation run on a few embedded scenes, shared by all tests of the tools."""

import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from mmengine.config import Config
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope
from mmengine.visualization import Visualizer

from vit5_dense.datasets.shapes_folder import build_set
from vit5_dense.errors import run_tool

REPO = Path(__file__).resolve().parents[1]
DEMO = REPO / 'configs' / 'upernet_vit5_ti_shapes.py'
DEMO_DET = REPO / 'configs' / 'mask_rcnn_vit5_ti_shapes.py'
ENV = {
    **os.environ,
    'PYTHONPATH': os.pathsep.join([str(REPO), *filter(None, [os.environ.get('PYTHONPATH')])]),
    'PYTHON': sys.executable,
    'OMP_NUM_THREADS': '1',
    'OMP_WAIT_POLICY': 'PASSIVE',
    'PYTHONUNBUFFERED': '1',  # tests follow the log
}
TRAIN_SCENES, VAL_SCENES = 8, 3  # 3: two processes have no equal shares
# Read as a config: a 2-block ViT-5 of width 32 on 64 px crops, one map for all levels of the neck.
CONFIG = """
_base_ = {base!r}
data_root = {data!r}
crop_size = (64, 64)
model = dict(
    data_preprocessor=dict(size=crop_size),
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=32, depth=2, num_heads=2),
        pretrain_img_size=64,
        out_indices=(1,),
    ),
    neck=dict(in_channels=32),
    decode_head=dict(in_channels=[32, 32, 32, 32], channels=8),
    auxiliary_head=dict(in_channels=32, channels=8),
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='RandomCrop', crop_size=crop_size),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    dataset=dict(data_root=data_root, pipeline=train_pipeline),
)
val_dataloader = dict(num_workers=0, dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
train_cfg = dict(max_iters=4, val_interval=2)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=2))
"""

# The same for a detector.
DET_CONFIG = """
_base_ = {base!r}
data_root = {data!r}
norm = dict(type='ViT5LayerNorm2d')
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=32, depth=2, num_heads=2),
        pretrain_img_size=64,
        out_indices=(1,),
        window_size=4,
        global_attn_indexes=(1,),
    ),
    neck=dict(in_channels=32, out_channels=16),
    rpn_head=dict(in_channels=16, feat_channels=16),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=16),
        bbox_head=dict(in_channels=16, fc_out_channels=32),
        mask_roi_extractor=dict(out_channels=16),
        mask_head=dict(in_channels=16, conv_out_channels=16),
    ),
    test_cfg=dict(rcnn=dict(score_thr=0.0, max_per_img=10)),
)
train_dataloader = dict(batch_size=2, num_workers=0, dataset=dict(data_root=data_root))
val_dataloader = dict(num_workers=0, dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
train_cfg = dict(max_iters=4, val_interval=2)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=2))
"""


class Run(NamedTuple):
    """A finished training run: its config, checkpoint, data and the scores of ``main``."""

    config: Path
    checkpoint: Path
    data: Path
    scores: dict[str, float]


def load_tool(name: str) -> ModuleType:
    """A file of ``tools/`` as a module."""
    spec = importlib.util.spec_from_file_location(f'tool_{name}', REPO / 'tools' / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forget_runs() -> None:
    """Drop mmengine's process-wide objects, which belong to the run before."""
    for kind in (Visualizer, *Visualizer.__subclasses__(), MessageHub, MMLogger, DefaultScope):
        kind._instance_dict.clear()


def call(tool: str | ModuleType, *argv: object) -> Any:
    """What ``main`` of a tool returns, run in this process."""
    forget_runs()
    module = load_tool(tool) if isinstance(tool, str) else tool
    # mmengine formats the config with yapf for every checkpoint, most of the time of a tiny run
    with patch.object(Config, 'pretty_text', property(str)):
        return module.main([str(arg) for arg in argv])


def exit_code(tool: str | ModuleType, *argv: object) -> int:
    """The exit code of a tool, run in this process."""
    return run_tool(lambda: call(tool, *argv))


def start(tool: str, *argv: object, cwd: Path | str = '/', **options: Any) -> subprocess.Popen:
    """A tool in a process of its own; stdout and stderr come back as one text."""
    return subprocess.Popen(
        [sys.executable, str(REPO / 'tools' / f'{tool}.py'), *map(str, argv)],
        env=ENV,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def follow(process: subprocess.Popen, pattern: str) -> str:
    """Read the log up to the line that matches."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return ''.join(lines)
    raise AssertionError('the run ended early:\n' + ''.join(lines[-30:]))


def write_config(
    folder: Path, data: Path, extra: str = '', name: str = 'tiny', detector: bool = False
) -> Path:
    """A config file of the tiny model; ``extra`` is appended to it."""
    path = folder / f'{name}.py'
    text, base = (DET_CONFIG, DEMO_DET) if detector else (CONFIG, DEMO)
    path.write_text(text.format(base=str(base), data=str(data)) + extra)
    return path


@functools.cache
def make_scenes(base: Path) -> Path:
    """A set of a few scenes in the session's folder."""
    out = base / 'tiny_scenes'
    counts = {'train': TRAIN_SCENES, 'val': VAL_SCENES}
    build_set(out, 0, counts, 1, False, lambda done, total: None)
    return out


@functools.cache
def make_run(base: Path, detector: bool) -> Run:
    """Four iterations of ``tools/train.py`` in the session's folder."""
    data, folder = make_scenes(base), base / ('tiny_det' if detector else 'tiny_run')
    if folder.exists():
        pytest.fail('the run that this test starts from has failed: see the first error')
    folder.mkdir()
    config = write_config(folder, data, detector=detector)
    scores = call('train', config, '--work-dir', folder / 'work')
    return Run(config, folder / 'work' / 'iter_4.pth', data, scores)


def scenes(factory: pytest.TempPathFactory) -> Path:
    """A set of a few scenes, made once in a session, whichever tests ask for it."""
    return make_scenes(factory.getbasetemp())


def trained(factory: pytest.TempPathFactory, detector: bool = False) -> Run:
    """A run of four iterations, made once in a session, whichever tests ask for it."""
    return make_run(factory.getbasetemp(), detector)
