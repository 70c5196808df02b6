"""Ctrl-C that loses nothing."""

import signal
from types import FrameType

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@HOOKS.register_module()
class ViT5InterruptHook(Hook):
    """Finishes the iteration, saves a checkpoint and stops when the run is interrupted.

    SIGINT (Ctrl-C) and SIGTERM (what schedulers send before they kill) are noted and acted on where
    weights, optimiser and schedule agree: after the iteration, or between two validation batches.
    A second signal stops at once. ``KeyboardInterrupt`` leaves the runner after the checkpoint is
    written; ``Runner.resume`` goes on from it.
    """

    priority = 'LOWEST'  # after schedules have stepped and the regular checkpoint is written

    def __init__(self) -> None:
        self.interrupted = False

    def before_train(self, runner: Runner) -> None:
        """Listen to the signals while training lasts."""
        self._previous = {s: signal.signal(s, self._note) for s in SIGNALS}
        # A signal to the whole process group ends the loading workers too, on which torch raises
        # from its SIGCHLD handler: not before the iteration is done and saved.
        self._on_child = signal.getsignal(signal.SIGCHLD)
        if callable(self._on_child):
            self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._child_ended)

    def after_train(self, runner: Runner) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def after_train_iter(self, runner: Runner, *args: object, **kwargs: object) -> None:
        """Save and stop if interrupted; the iteration just done is not counted yet."""
        if self.interrupted:
            self._save_and_stop(runner, runner.iter + 1)

    def after_val_iter(self, runner: Runner, *args: object, **kwargs: object) -> None:
        """Save and stop if interrupted within the validation of a training run."""
        if self.interrupted:
            self._save_and_stop(runner, runner.iter)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    def _child_ended(self, number: int, frame: FrameType | None) -> None:
        if not self.interrupted:
            self._on_child(number, frame)

    def _save_and_stop(self, runner: Runner, done: int) -> None:
        self.after_train(runner)
        runner.save_checkpoint(
            runner.work_dir, f'iter_{done}.pth', meta={'iter': done}, by_epoch=False
        )
        with open(f'{runner.work_dir}/last_checkpoint', 'w') as file:
            file.write(f'{runner.work_dir}/iter_{done}.pth')
        raise KeyboardInterrupt
