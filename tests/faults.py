"""What the project survives: killed runs, large pictures, bad input, several processes.

A training run is killed at random moments, resumed each time, and compared with an unbroken one.
Run by ``make faults``: python tests/faults.py --kills 30
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tiny_run import make_scenes, start, write_config
from vit5_dense.building import build_model
from vit5_dense.checkpoint_io import CheckpointError, last_good_checkpoint, read_file
from vit5_dense.config import load_config

Figures = dict[str, Any]
# Test files and what their tests stand for.
SECTIONS = {
    'bad_inputs': 'bad inputs answered in one message',
    'fuzz': 'tests of 500 damaged checkpoints and 500 damaged annotations',
    'distributed': 'tests of two processes that train and test',
    'distributed_training': 'tests of two processes beside one, and of one that is killed',
}
MANY_CLASSES = """
model.update(test_cfg=dict(_delete_=True, mode='whole'))
model['decode_head'].update(num_classes=150)
model['auxiliary_head'].update(num_classes=150)
"""
INTERVAL = 3  # iterations from one checkpoint to the next
EXTRA = """
model['backbone']['drop_path_rate'] = 0.3
train_cfg = dict(max_iters={iterations}, val_interval={iterations})
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval={interval}))
"""


class Follower(threading.Thread):
    """Reads the log of a run and knows the last iteration that it told of."""

    def __init__(self, process: subprocess.Popen) -> None:
        super().__init__(daemon=True)
        self.process = process
        self.iteration = 0
        self.begun = threading.Event()
        self.lines: list[str] = []

    def run(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(r'Iter\(train\) \[ *(\d+)/', line):
                self.iteration = int(found[1])
                self.begun.set()
        self.begun.set()


def saved_iteration(work: Path) -> int:
    """Iterations of the newest checkpoint that is whole; 0 if there is none."""
    try:
        return read_file(last_good_checkpoint(work))['meta']['iter']
    except CheckpointError:
        return 0


def run_killed(config: Path, work: Path, delay: float) -> tuple[int, int]:
    """Start or resume a run and kill it; the last iteration it told of, and its exit code."""
    resume = ['--resume'] if saved_iteration(work) else []
    process = start('train', config, '--work-dir', work, *resume, start_new_session=True)
    follower = Follower(process)
    follower.start()
    follower.begun.wait()
    time.sleep(delay)
    code = process.poll()
    if code is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    follower.join()
    if code:
        raise SystemExit('the run failed by itself:\n' + ''.join(follower.lines[-30:]))
    return follower.iteration, code if code is not None else -signal.SIGKILL


def killed_runs(kills: int, seed: int) -> tuple[Figures, bool]:
    """Figures of a run that is killed so many times, and whether nothing was lost."""
    dice = random.Random(seed)
    lost, spoilt = [], 0
    with tempfile.TemporaryDirectory() as temporary, Progress() as progress:
        base = Path(temporary)
        extra = EXTRA.format(iterations=40 * kills, interval=INTERVAL)
        config = write_config(base, make_scenes(base), extra)
        work = base / 'killed'
        for _ in progress.track(range(kills), description='kills'):
            before = saved_iteration(work)
            reached, code = run_killed(config, work, dice.uniform(0, 1.5))
            if code == 0:
                raise SystemExit('the run ended before its last kill: give it more iterations')
            saved = saved_iteration(work)
            spoilt += saved < before
            lost.append(max(reached, before) - saved)
        last = saved_iteration(work)
        # An unbroken run of as many iterations; schedules do not depend on where it stops.
        whole = base / 'whole'
        options = ['--cfg-options', f'train_cfg.max_iters={last}']
        process = start('train', config, '--work-dir', whole, *options)
        output = process.communicate()[0]
        if process.returncode:
            raise SystemExit(output[-3000:])
        found, expected = (
            read_file(last_good_checkpoint(folder))['state_dict'] for folder in (work, whole)
        )
        same = all(torch.equal(found[key], expected[key]) for key in expected)
    figures: Figures = {
        'kills survived': kills,
        'iterations in the end': last,
        'checkpoints lost': spoilt,
        'iterations lost at most': max(lost),
        'iterations between checkpoints': INTERVAL,
        'equal to an unbroken run, bit for bit': same,
    }
    return figures, spoilt == 0 and max(lost) <= INTERVAL and same


def segment_picture(base: Path, side: int, config: Path, checkpoint: Path) -> float:
    """Peak memory in MB of tools/infer.py on a square picture in tiles."""
    picture = base / f'{side}.png'
    noise = np.random.default_rng(0).integers(0, 256, (side // 20, side // 20, 3), np.uint8)
    Image.fromarray(noise).resize((side, side)).save(picture)
    options = ['--tile', '1024', '--overlap', '128', '--device', 'cpu']
    process = start('infer', config, checkpoint, picture, '--out', base / str(side), *options)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(output[-3000:])
    return usage.ru_maxrss / 1024


def large_picture() -> tuple[Figures, bool]:
    """Memory that 4000 x 4000 pixels and 150 classes take beside the model and the libraries."""
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        config = write_config(base, base, MANY_CLASSES)
        model = build_model(load_config(str(config)))
        meta = {
            'classes': [f'class {i}' for i in range(150)],
            'palette': [[i] * 3 for i in range(150)],
        }
        checkpoint = base / 'random.pth'
        torch.save({'state_dict': model.state_dict(), 'meta': {'dataset_meta': meta}}, checkpoint)
        small, large = (segment_picture(base, side, config, checkpoint) for side in (64, 4000))
    figures: Figures = {'4000 x 4000 pixels, 150 classes: MB above the model': round(large - small)}
    return figures, large - small < 2000


def run_tests(out: Path) -> tuple[Figures, bool]:
    """Numbers of tests of each file that passed, and whether all did."""
    file = out / 'tests.xml'
    command = [
        sys.executable,
        '-m',
        'pytest',
        '-n',
        '2',
        '--dist',
        'loadfile',
        f'--junitxml={file}',
    ]
    names = [f'test_{name}.py' for name in SECTIONS]
    code = subprocess.run([*command, *(Path(__file__).parent / name for name in names)]).returncode
    cases = ElementTree.parse(file).getroot().iter('testcase')
    passed: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for case in cases:
        name = case.attrib['classname'].rpartition('.')[2].removeprefix('test_')
        tried[name] += 1
        passed[name] += not [*case]  # a failure, an error or a skip stands inside
    return {what: f'{passed[name]} of {tried[name]}' for name, what in SECTIONS.items()}, code == 0


def main() -> int:
    """Print and write the figures; 0 if nothing was lost and every test passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--kills', type=int, default=30)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--out', type=Path, default=Path('work_dirs/faults'))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    figures: Figures = {}
    right = True
    begin = time.monotonic()
    with ThreadPoolExecutor() as pool:  # each keeps one core busy
        apart = pool.submit(killed_runs, args.kills, args.seed), pool.submit(large_picture)
        results = [future.result() for future in apart]
    for more, good in (*results, run_tests(args.out)):
        figures |= more
        right &= good
    figures['minutes'] = round((time.monotonic() - begin) / 60, 1)
    table = Table('faults', '')
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console().print(table)
    (args.out / 'faults.json').write_text(json.dumps(figures, indent=1) + '\n')
    return int(not right)


if __name__ == '__main__':
    raise SystemExit(main())
