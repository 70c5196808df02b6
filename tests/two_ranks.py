"""Started by torchrun: several short runs, one after the other, as starting takes longest.

Arguments: a folder, then names of configs in it. A run of NAME works in the folder NAME, where
each process leaves its weights in ``rank<r>_first.pth`` and, after the last iteration, in
``rank<r>_last.pth``.
"""

import sys
from pathlib import Path
from unittest.mock import patch

import torch
from mmengine.hooks import Hook
from mmengine.runner import FlexibleRunner, Runner
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

import vit5_dense.sharding  # noqa: F401  registers the policy
from rank_runs import without_report
from tiny_run import call, forget_runs, load_tool
from vit5_dense.building import build_runner
from vit5_dense.config import fit_machine, join_processes, load_config
from vit5_dense.exact import exact_loader
from vit5_dense.hooks.exact import ViT5ExactHook


class Recorder(Hook):
    """Saves the weights of this process before the first iteration and after the last."""

    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        self.save(runner, 'first')

    def after_train(self, runner: Runner) -> None:
        self.save(runner, 'last')

    def save(self, runner: Runner, moment: str) -> None:
        path = Path(runner.work_dir, f'rank{runner.rank}_{moment}.pth')
        torch.save(runner.model.module.state_dict(), path)


def train(config: Path) -> None:
    """A run of ``tools/train.py``."""

    def build_recorded(*args: object, **kwargs: object) -> Runner:
        runner = build_runner(*args, **kwargs)
        runner.register_hook(Recorder())
        return runner

    with without_report():
        tool = load_tool('train')
    with (
        patch.object(tool, 'join_processes'),  # done once for all runs
        patch.object(tool, 'build_runner', build_recorded),
    ):
        call(tool, config, '--launcher', 'pytorch')


def train_sharded(config: Path) -> None:
    """A run of mmengine's own runner with its strategy, which our tool leaves alone."""
    forget_runs()
    cfg = load_config(str(config))
    fit_machine(cfg, 'pytorch')
    runner = FlexibleRunner.from_cfg(cfg)
    loader = runner.build_dataloader(cfg.train_dataloader, runner.seed)
    runner._train_dataloader = exact_loader(loader, runner.seed)
    runner.register_hook(ViT5ExactHook())
    runner.train()
    units = [type(unit.module).__name__ for unit in FSDP.fsdp_modules(runner.model)]
    own = sum(param.numel() for param in runner.model.parameters())
    with FSDP.summon_full_params(runner.model, writeback=False):
        last = {
            name.replace('_fsdp_wrapped_module.', ''): param.detach().clone()
            for name, param in runner.model.module.named_parameters()
        }
    torch.save(
        {'weights': last, 'units': units, 'own': own},
        Path(cfg.work_dir, f'rank{runner.rank}_last.pth'),
    )


if __name__ == '__main__':
    join_processes('pytorch')
    for name in sys.argv[2:]:
        path = Path(sys.argv[1], f'{name}.py')
        (train_sharded if 'FSDPStrategy' in path.read_text() else train)(path)
    torch.distributed.destroy_process_group()
