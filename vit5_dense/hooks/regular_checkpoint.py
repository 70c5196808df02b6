"""Regular checkpoints of which one is there at any time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner


@HOOKS.register_module()
class ViT5CheckpointHook(CheckpointHook):
    """mmengine's, which removes an older checkpoint only when the new one is in its place.

    A kill or a full disk while it is written leaves the older one, with ``max_keep_ckpts=1`` and
    with ``save_best`` as well. The disk needs room for one file more. In a work dir that was moved
    or copied the best checkpoint is that within it.
    """

    def before_train(self, runner: Runner) -> None:
        """Look for the best checkpoint here, not where the run was before."""
        super().before_train(runner)
        if best := getattr(self, 'best_ckpt_path', None):
            self.best_ckpt_path = str(Path(self.out_dir, Path(best).name))
        for key, best in getattr(self, 'best_ckpt_path_dict', {}).items():
            if best:
                self.best_ckpt_path_dict[key] = str(Path(self.out_dir, Path(best).name))

    @contextmanager
    def _removing_last(self) -> Iterator[None]:
        """Put off what is removed in here to the end; after an error all of it stays."""
        remove = self.file_backend.remove
        old: list[str] = []
        self.file_backend.remove = old.append
        try:
            yield
        finally:
            self.file_backend.remove = remove
        best = {getattr(self, 'best_ckpt_path', None)}
        best.update(getattr(self, 'best_ckpt_path_dict', {}).values())
        for path in old:
            if path not in best:  # written anew, by a validation that was done again
                remove(path)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        with self._removing_last():
            super()._save_checkpoint_with_step(runner, step, meta)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict[str, float]) -> None:
        with self._removing_last():
            super()._save_best_checkpoint(runner, metrics)
