"""Runs of two processes on the CPU, shared by the tests of what they make of the weights."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from tiny_run import ENV, REPO, call, follow, write_config

TIMEOUT = 300  # s; a deadlock would wait forever

# A step shows the gradients: plain descent at a high rate. Nothing mixes samples (norms by
# position instead of batch norm), nothing is dropped at random, what a draw looks like depends on
# its number. Five pictures of one size in batches of two leave the ranks a last batch of one.
EQUAL_STEPS = """
norm_cfg = dict(type='ViT5LayerNorm2d')
model.update(
    decode_head=dict(model['decode_head'], norm_cfg=norm_cfg, dropout_ratio=0.0),
    auxiliary_head=dict(model['auxiliary_head'], norm_cfg=norm_cfg, dropout_ratio=0.0),
)
optim_wrapper = dict(
    _delete_=True, type='OptimWrapper', optimizer=dict(type='SGD', lr=0.5, weight_decay=0.0)
)
param_scheduler = []
train_pipeline.insert(3, dict(type='RandomFlip', prob=0.5))
train_dataloader.update(batch_size={batch_size})
val_dataloader.update(batch_size=2)
val_dataloader['dataset'].update(
    indices=5,
    data_prefix=dict(img_path='images/train', seg_map_path='annotations/train'),
    pipeline=[
        dict(type='LoadImageFromFile'),
        dict(type='Resize', scale=(96, 96), keep_ratio=False),
        dict(type='LoadAnnotations', reduce_zero_label=True),
        dict(type='PackSegInputs'),
    ],
)
test_dataloader = val_dataloader
train_cfg.update(max_iters={max_iters}, val_interval={max_iters})
default_hooks['checkpoint'].update(interval=1, max_keep_ckpts=-1)
work_dir = {work_dir!r}
"""

SHARDED = """
model['init_cfg'] = dict(type='Pretrained', checkpoint={start!r})
custom_hooks = []  # the steps alone are compared
default_hooks['checkpoint'] = None  # torch 2.11 crashes as it gathers a state dict on a CPU
runner_type = 'FlexibleRunner'
strategy = dict(
    type='FSDPStrategy',
    model_wrapper=dict(auto_wrap_policy='vit5_block_policy', device_id='cpu'),
    state_dict_cfg='full',
)
"""

# Stopped from outside, or after a few iterations; with processes that load.
ENDLESS = """
train_dataloader.update(num_workers=1)
train_cfg.update(max_iters={max_iters}, val_interval=4000)
resume = True
"""

# Odd pictures have lost their objects, and pictures come in order: rank 1 never sees an object.
# Ranks start from different random numbers, so that equal weights are not luck.
HALF_EMPTY = """
train_dataloader.update(batch_size=1, sampler=dict(type='InfiniteSampler', shuffle=False))
train_dataloader['dataset'].update(ann_file={ann_file!r}, filter_cfg=dict(filter_empty_gt=False))
val_dataloader.update(batch_size=2)
val_dataloader['dataset'].update(
    indices=5, ann_file='instances_train.json', data_prefix=dict(img='images/train')
)
train_cfg.update(max_iters=3, val_interval=3)
randomness = dict(seed=0, diff_rank_seed=True)
work_dir = {work_dir!r}
"""


class Killed(NamedTuple):
    """How a run ended of which one process was killed."""

    log: str
    seconds: float  # until the launcher ended
    checkpoint: Path
    left: str  # numbers of the processes that stayed


def start(script: str, *argv: object) -> subprocess.Popen:
    """A script in a process group of its own; stdout and stderr come back as one text."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    return subprocess.Popen(
        ['bash', str(REPO / 'tools' / script), *map(str, argv)],
        cwd='/',
        env={**ENV, 'PORT': str(port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen) -> str:
    """The output up to the end, which must come in time."""
    try:
        return process.communicate(timeout=TIMEOUT)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def without_report() -> Iterator[None]:
    """Runs of ``tools/train.py`` in here draw no pictures, which take longer than the run."""
    with patch('vit5_dense.report.write_report'), patch('vit5_dense.report.example_pictures'):
        yield


def write_segmentor(folder: Path, data: Path, name: str, batch_size: int, extra: str = '') -> Path:
    """Two steps, which one process makes with a batch twice as large."""
    text = EQUAL_STEPS.format(batch_size=batch_size, max_iters=2, work_dir=str(folder / name))
    return write_config(folder, data, text + extra, name)


def write_detector(folder: Path, data: Path) -> Path:
    """A run in which rank 1 has no object in any batch."""
    content = json.loads((data / 'instances_train.json').read_text())
    kept = {image['id'] for image in content['images'][::2]}
    content['annotations'] = [one for one in content['annotations'] if one['image_id'] in kept]
    ann_file = folder / 'half.json'
    ann_file.write_text(json.dumps(content))
    extra = HALF_EMPTY.format(ann_file=str(ann_file), work_dir=str(folder / 'det'))
    return write_config(folder, data, extra, 'det', detector=True)


def pgrep(option: str, *pids: str) -> str:
    """Numbers of the processes below others, or in their groups."""
    command = ['pgrep', option, ','.join(pids)]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


def kill_one(folder: Path, data: Path) -> Killed:
    """Kill the second of two training processes as the system does when memory is short."""
    config = write_segmentor(folder, data, 'killed', 2, ENDLESS.format(max_iters=4000))
    process = start('dist_train.sh', config, 2)
    log = follow(process, r'Iter\(train\) \[ *3/4000\]')
    ranks = pgrep('-P', str(process.pid)).split()
    os.kill(int(ranks[-1]), signal.SIGKILL)
    since = time.monotonic()
    log += finish(process)
    seconds = time.monotonic() - since
    while (left := pgrep('-g', *ranks)) and time.monotonic() < since + 60:
        time.sleep(0.5)  # loading workers look for their parent every five seconds
    checkpoint = Path((folder / 'killed' / 'last_checkpoint').read_text())
    return Killed(log, seconds, checkpoint, left)


def train_all(folder: Path, data: Path) -> Killed:
    """Make all runs, each in the folder of its name: of two processes, but for 'one'."""
    killed = kill_one(folder, data)
    last = int(killed.checkpoint.stem.removeprefix('iter_')) + 2
    write_segmentor(folder, data, 'killed', 2, ENDLESS.format(max_iters=last))
    write_segmentor(folder, data, 'two', 2)
    weights = str(folder / 'two' / 'rank0_first.pth')
    write_segmentor(folder, data, 'sharded', 2, SHARDED.format(start=weights))
    resume = f'resume = True\nload_from = {str(folder / "two" / "iter_1.pth")!r}\n'
    write_segmentor(folder, data, 'resumed', 2, resume)
    names = ['two', 'resumed', 'sharded', 'killed']
    if importlib.util.find_spec('mmcv._ext'):
        write_detector(folder, data)
        names.append('det')
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2']
    done = subprocess.run(
        [*command, str(REPO / 'tests' / 'two_ranks.py'), str(folder), *names],
        check=False,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    with without_report():
        call('train', write_segmentor(folder, data, 'one', 4))
    return killed
