"""Ctrl-C that loses nothing."""

import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from mmengine.dist import all_reduce, is_distributed
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner

from ..atomic import write_atomically

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def ignore(number: int, frame: FrameType | None) -> None:
    """A signal handler that does nothing."""


class Saved(KeyboardInterrupt):
    """The run was interrupted and all of it is in the checkpoint that this names."""


@HOOKS.register_module()
class ViT5InterruptHook(Hook):
    """Finishes the iteration, saves a checkpoint and stops when the run is interrupted.

    SIGINT (Ctrl-C) and SIGTERM (what schedulers send before they kill) are noted and acted on where
    weights, optimiser and schedule agree: after the iteration (under gradient accumulation after
    the last one of a step), or between two validation batches. ``Saved``, a ``KeyboardInterrupt``,
    leaves the runner after the checkpoint is written; ``Runner.resume`` goes on from it. A second
    signal, a second or more later, stops at once. Outside the main thread, which alone hears
    signals, the hook does nothing.
    """

    priority = 'LOWEST'  # after schedules have stepped and the regular checkpoint is written

    def __init__(self) -> None:
        self.interrupted = False
        self.at_rest = True  # weights, optimiser and schedule agree
        self._validating = False
        self._since = 0.0
        self._previous: dict[int, Any] = {}

    def before_train(self, runner: Runner) -> None:
        """Listen to the signals while training lasts."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        else:
            runner.logger.info('outside the main thread: an interruption will not save')

    def before_train_iter(self, runner: Runner, *args: object, **kwargs: object) -> None:
        """Take SIGCHLD from torch, which listens to it since the first batch was asked for.

        A signal to the whole process group ends the loading workers too, sometimes before we hear
        of it. torch raises on that in the middle of an iteration; without it the loader still
        notices dead workers, within seconds, when it waits for them.
        """
        self.at_rest = False
        if self._previous and signal.getsignal(signal.SIGCHLD) is not ignore:
            self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, ignore)

    def after_train(self, runner: Runner) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def after_train_iter(self, runner: Runner, *args: object, **kwargs: object) -> None:
        """Save and stop if interrupted; the iteration just done is not counted yet."""
        self.at_rest = True
        if runner.optim_wrapper.should_update() and self._all_agree():
            self.save_and_stop(runner, runner.iter + 1)

    def before_val_epoch(self, runner: Runner) -> None:
        """Note that hooks may have put other weights into the model."""
        self._validating = True

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Save and stop if interrupted within the validation of a training run."""
        if self._all_agree():
            self.save_and_stop(runner, runner.iter)
        self.at_rest = batch_idx + 1 < len(runner.val_dataloader)  # then hooks undo what they did

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Note that the model has its own weights again."""
        self._validating, self.at_rest = False, True

    def _all_agree(self) -> bool:
        """Whether to stop now: all processes after the same iteration, or some would wait."""
        if not is_distributed():
            return self.interrupted
        flag = torch.tensor(float(self.interrupted))
        all_reduce(flag, op='max')
        return bool(flag)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.interrupted and now - self._since > 1:  # the launcher sends on what we got as well
            raise KeyboardInterrupt
        if not self.interrupted:
            self._since = now
        self.interrupted = True

    def save_and_stop(self, runner: Runner, done: int) -> None:
        """Save a checkpoint of ``done`` iterations and leave the runner.

        Raises:
            Saved: Always, once the checkpoint is written.
        """
        path = Path(runner.work_dir, f'iter_{done}.pth')
        if self._validating:
            for hook in runner.hooks:
                if isinstance(hook, EMAHook):  # it has swapped the weights that are trained
                    hook.after_val_epoch(runner)
        elif isinstance(runner.train_loop, EpochBasedTrainLoop):
            runner.logger.warning(
                'stopped within epoch %d, which --resume begins anew: its first pictures are seen '
                'twice. Only runs of IterBasedTrainLoop go on exactly',
                runner.epoch + 1,
            )
        if not runner.optim_wrapper.should_update():
            runner.logger.warning(
                'stopped between two steps of the optimiser: the gradients added up for the next '
                'one are lost'
            )
        try:
            runner.save_checkpoint(
                runner.work_dir,
                path.name,
                meta={'iter': done},
                by_epoch=False,
                backend_args={'backend': 'vit5_atomic'},
            )
            if runner.rank == 0:
                write_atomically(path.with_name('last_checkpoint'), str(path).encode())
        finally:
            self.after_train(runner)
        raise Saved(path)


def train_until_interrupted(runner: Runner) -> None:
    """``runner.train()``, also where a signal to the whole process group ends the loading workers.

    A process that waits for a batch then gets an error, whose type depends on what the worker was
    doing: torch's about its workers, a connection reset, an end of file. Weights, optimiser and
    schedule agree between iterations, so the run is saved as after an iteration. An error of
    another cause is in the log, and comes again when the run goes on.
    """
    try:
        runner.train()
    except Exception as error:
        for hook in runner.hooks:
            if isinstance(hook, ViT5InterruptHook) and hook.interrupted and hook.at_rest:
                runner.logger.info('interrupted while waiting: %s: %s', type(error).__name__, error)
                hook.save_and_stop(runner, runner.iter)
        raise
