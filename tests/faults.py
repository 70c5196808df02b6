"""Kill a training run at random moments, resume it each time, and compare it with an unbroken one.

Run by ``make faults``: python tests/faults.py --kills 30
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tiny_run import make_scenes, start, write_config
from vit5_dense.checkpoint_io import CheckpointError, last_good_checkpoint, read_file

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


def main() -> int:
    """Print and write the figures; 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--kills', type=int, default=30)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--out', type=Path, default=Path('work_dirs/faults'))
    args = parser.parse_args()
    dice = random.Random(args.seed)
    lost, spoilt, kills = [], 0, 0
    with tempfile.TemporaryDirectory() as temporary, Progress() as progress:
        base = Path(temporary)
        extra = EXTRA.format(iterations=40 * args.kills, interval=INTERVAL)
        config = write_config(base, make_scenes(base), extra)
        work = base / 'killed'
        bar = progress.add_task('kills', total=args.kills)
        while kills < args.kills:
            before = saved_iteration(work)
            reached, code = run_killed(config, work, dice.uniform(0, 1.5))
            if code == 0:
                raise SystemExit(f'the run ended after {kills} kills: give it more iterations')
            kills += 1
            saved = saved_iteration(work)
            spoilt += saved < before
            lost.append(max(reached, before) - saved)
            progress.advance(bar)
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
    figures = {
        'kills survived': kills,
        'iterations in the end': last,
        'checkpoints lost': spoilt,
        'iterations lost at most': max(lost),
        'iterations between checkpoints': INTERVAL,
        'equal to an unbroken run, bit for bit': same,
    }
    table = Table('fault injection', '')
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console().print(table)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / 'kills.json').write_text(json.dumps(figures, indent=1) + '\n')
    return int(spoilt > 0 or max(lost) > INTERVAL or not same)


if __name__ == '__main__':
    raise SystemExit(main())
