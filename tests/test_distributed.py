"""Two gloo processes on the CPU, through the shell scripts that users start."""

import http.server
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from mmengine.model import BaseModel
from torch import nn

from rank_runs import finish, start
from tiny import TINY
from tiny_run import ENV, REPO, Run, call, follow, trained, write_config
from vit5_dense import ViT5


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory)


def launch(script: str, *argv: object) -> str:
    """Output of a script that must end well."""
    process = start(script, *argv)
    output = finish(process)
    assert process.returncode == 0, output[-4000:]
    return output


def test_two_processes_train_and_validate(run: Run, tmp_path: Path) -> None:
    """With recomputed blocks, of which DDP must not lose a gradient, and SyncBN without a GPU."""
    extra = "model['backbone'].update(with_cp=True)\ntrain_cfg.update(max_iters=2)\n"
    config = write_config(tmp_path, run.data, extra)
    output = launch('dist_train.sh', config, 2, '--work-dir', tmp_path / 'work')
    assert output.count('report: ') == 1, 'one process reports'
    assert (tmp_path / 'work' / 'report.png').is_file()
    checkpoint = tmp_path / 'work' / 'iter_2.pth'
    state = torch.load(checkpoint, weights_only=True)
    assert {int(s['step']) for s in state['optimizer']['state'].values()} == {2}
    assert not any(key.startswith('module.') for key in state['state_dict'])
    (scalars,) = (tmp_path / 'work').glob('*/vis_data/scalars.json')
    rows = [json.loads(line) for line in scalars.read_text().splitlines()]
    assert [row['step'] for row in rows if 'mIoU' in row] == [2]


def test_interrupted_processes_stop_after_the_same_iteration(run: Run, tmp_path: Path) -> None:
    """The one that hears of it later must not wait for the other."""
    extra = 'train_cfg.update(max_iters=400, val_interval=400)\n'
    config = write_config(tmp_path, run.data, extra)
    process = start('dist_train.sh', config, 2, '--work-dir', tmp_path / 'work')
    follow(process, r'Iter\(train\) \[ *3/400\]')
    os.killpg(process.pid, signal.SIGTERM)
    output = finish(process)
    assert output.count('\ninterrupted\n') == 2, output[-4000:]
    assert output.count('go on with the same command and --resume') == 1
    last = Path((tmp_path / 'work' / 'last_checkpoint').read_text())
    done = torch.load(last, weights_only=True)['meta']['iter']
    assert last.name == f'iter_{done}.pth'
    assert 3 <= done < 400


def test_two_processes_test_as_one_does(run: Run, tmp_path: Path) -> None:
    out = tmp_path / 'two.json'
    output = launch(
        'dist_test.sh', run.config, run.checkpoint, 2, '--work-dir', tmp_path, '--out', out
    )
    call('test', run.config, run.checkpoint, '--work-dir', tmp_path, '--out', tmp_path / 'one.json')
    assert json.loads(out.read_text()) == json.loads((tmp_path / 'one.json').read_text())
    assert output.count('mIoU: ') - output.count('  mIoU: ') == 1, 'one process reports'


@pytest.mark.parametrize('script', ['dist_train.sh', 'dist_test.sh', 'slurm_train.sh'])
def test_a_script_without_arguments_says_how_it_is_used(script: str) -> None:
    result = subprocess.run(
        ['bash', str(REPO / 'tools' / script)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert f'Usage: tools/{script} ' in result.stderr
    assert '#' not in result.stderr


def test_slurm_is_asked_for_the_right_machines(tmp_path: Path) -> None:
    srun = tmp_path / 'srun'
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    result = subprocess.run(
        ['bash', str(REPO / 'tools' / 'slurm_train.sh'), 'part', 'job', 'config.py', '--amp'],
        check=True,
        capture_output=True,
        text=True,
        env={
            **ENV,
            'PATH': f'{tmp_path}:{ENV["PATH"]}',
            'GPUS': '4',
            'SRUN_ARGS': '--exclusive --x',
        },
    )
    words = result.stdout.split('\n')
    for word in ('--ntasks=4', '--ntasks-per-node=4', '--gres=gpu:4', '--exclusive', '--x'):
        assert word in words
    assert words[-5:-1] == ['config.py', '--launcher', 'slurm', '--amp']


class Model(BaseModel):
    """A model with the backbone inside, as a segmentor has it."""

    def __init__(self, checkpoint: str) -> None:
        super().__init__()
        init_cfg = {'type': 'Pretrained', 'checkpoint': checkpoint}
        self.backbone = ViT5(TINY, 64, out_indices=(2,), frozen_stages=0, init_cfg=init_cfg)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.backbone(inputs)[0]


def load_in_one_rank(rank: int, folder: str, checkpoint: str) -> None:
    """Load the file twice in a process with a random state of its own, wrap in DDP, save."""
    os.environ |= {'LOCAL_RANK': str(rank), 'TORCH_HOME': folder}
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/meeting', rank=rank, world_size=2
    )
    torch.manual_seed(rank)
    model = Model(checkpoint)
    model.init_weights()
    model.init_weights()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    ddp = nn.parallel.DistributedDataParallel(model)
    torch.save({'before': before, 'after': ddp.module.state_dict()}, f'{folder}/rank{rank}.pth')
    torch.distributed.destroy_process_group()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """Address of the test's folder and the requests so far."""
    requests: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_request(self, *args: Any) -> None:
            requests.append(self.path)

    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_port}', requests
        server.shutdown()


@pytest.mark.parametrize('by_url', [False, True], ids=['file', 'url'])
def test_every_rank_loads_the_weights_of_the_file(
    tmp_path: Path, served: tuple[str, list[str]], by_url: bool
) -> None:
    """And a machine fetches it once."""
    weights = ViT5(TINY, 64, out_indices=(2,)).state_dict()
    torch.save(weights, tmp_path / 'file.pth')
    address, requests = served
    checkpoint = f'{address}/file.pth' if by_url else str(tmp_path / 'file.pth')
    torch.multiprocessing.spawn(load_in_one_rank, (str(tmp_path), checkpoint), nprocs=2)
    assert requests == ['/file.pth'] * by_url
    for rank in range(2):
        saved = torch.load(tmp_path / f'rank{rank}.pth', weights_only=True)
        for state in saved.values():
            assert set(state) == {f'backbone.{key}' for key in weights}
            for key, value in weights.items():
                torch.testing.assert_close(state[f'backbone.{key}'], value, rtol=0, atol=0)
