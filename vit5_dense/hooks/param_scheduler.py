"""Schedules that count steps of the optimiser."""

from typing import Any

from mmengine.hooks import ParamSchedulerHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner


@HOOKS.register_module()
class ViT5ParamSchedulerHook(ParamSchedulerHook):
    """Advances schedules by iteration once for each step of the optimiser.

    mmengine's hook advances them in each iteration, so that under gradient accumulation warm-up and
    decay end too early. Without accumulation both do the same; schedules by epoch are as ever.
    """

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        """Advance if the iteration just done has ended in a step."""
        if runner.optim_wrapper.should_update():
            super().after_train_iter(runner, *args, **kwargs)
