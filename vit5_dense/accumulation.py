"""Several iterations for one step of the optimiser, with the schedule of a config unchanged."""

from typing import Any

from mmengine.config import Config, ConfigDict

from .errors import UserError

# What counts iterations, with mmengine's defaults.
LOOP: dict[str, int | None] = {'max_iters': None, 'val_begin': None, 'val_interval': 1000}
HOOKS: dict[str, dict[str, int | None]] = {
    'LoggerHook': {'interval': 10},
    'EMAHook': {'interval': 1, 'begin_iter': None},
    'ViT5StabilityHook': {'interval': 50},
}


def lengthen(node: ConfigDict, defaults: dict[str, int | None], count: int) -> None:
    """Multiply numbers of iterations in a node of a config.

    Args:
        node: Changed in place.
        defaults: Keys to multiply, with the value that a missing one stands for; with None a
            missing key stays missing.
        count: The factor.
    """
    for key, default in defaults.items():
        value = node.get(key, default)
        if value is not None and value > 0:  # -1 means never
            node[key] = count * value


def accumulate(cfg: Config, count: int) -> None:
    """Make ``count`` iterations one step of the optimiser in a config written for one.

    The config was made for steps of B pictures and is run with B / count in an iteration
    (``batch_size`` times processes), which is the user's to see to. Number of steps, pictures seen
    and the rate in each step stay what they were: the iterations of the loop, of checkpoints, of
    logging and of EMA are multiplied; schedules by iteration advance once in a step; whatever
    counts epochs is left alone. ``auto_scale_lr`` counts the pictures of a step.

    Args:
        cfg: Changed in place.
        count: At least 1, which changes nothing.

    Raises:
        UserError: If the config accumulates already, or a schedule's length cannot be told.
    """
    if count < 1:
        raise UserError(f'--accumulate {count} must be at least 1')
    if count == 1:
        return
    if (already := cfg.optim_wrapper.get('accumulative_counts', 1)) != 1:
        raise UserError(
            f'--accumulate {count}: the config has optim_wrapper.accumulative_counts={already} '
            'already; leave one of them out'
        )
    cfg.optim_wrapper.accumulative_counts = count
    steps = cfg.train_cfg.get('max_iters')
    for schedule in schedules(cfg):
        if schedule.get('convert_to_iter_based'):
            raise UserError(
                f'--accumulate {count}: {schedule.type} has convert_to_iter_based, which counts '
                'iterations; set by_epoch=False and its begin and end in steps of the optimiser'
            )
        if not schedule.get('by_epoch', True) and schedule.get('end') is None:
            if steps is None:
                raise UserError(
                    f'--accumulate {count}: {schedule.type} has no end; set it, in steps of the '
                    'optimiser'
                )
            schedule.end = steps  # mmengine would take the lengthened loop
    if steps is not None:
        lengthen(cfg.train_cfg, LOOP, count)
        if changes := cfg.train_cfg.get('dynamic_intervals'):
            cfg.train_cfg.dynamic_intervals = [(count * a, count * b) for a, b in changes]
    hooks = cfg.setdefault('default_hooks', ConfigDict())
    hooks.param_scheduler = ConfigDict(type='ViT5ParamSchedulerHook')
    hooks.setdefault('logger', ConfigDict(type='LoggerHook'))
    if not hooks.get('checkpoint', {}).get('by_epoch', True):
        lengthen(hooks.checkpoint, {'interval': None, 'save_begin': None}, count)
    for hook in (hooks.logger, *cfg.get('custom_hooks', ())):
        lengthen(hook, HOOKS.get(hook.type, {}), count)
    if base := (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
        cfg.auto_scale_lr.base_batch_size = base / count


def check_intervals(cfg: Config) -> None:
    """Refuse checkpoints and validations between two iterations of one step.

    Args:
        cfg: With ``accumulative_counts`` of its own or of ``accumulate``.

    Raises:
        UserError: If an interval is no multiple of it, so that a run that goes on from such a
            checkpoint would lack gradients.
    """
    count = cfg.optim_wrapper.get('accumulative_counts', 1)
    loop, hook = cfg.train_cfg, cfg.get('default_hooks', {}).get('checkpoint') or {}
    if loop.get('max_iters') is None:
        return
    numbers = {'train_cfg.val_interval': loop.get('val_interval', LOOP['val_interval'])}
    if not cfg.get('val_dataloader'):
        numbers.clear()
    if not hook.get('by_epoch', True):
        for key in ('interval', 'save_begin'):
            numbers[f'default_hooks.checkpoint.{key}'] = hook.get(key, 0)
    for key, number in numbers.items():
        if number > 0 and number % count:
            raise UserError(
                f'{key} {number} is no multiple of optim_wrapper.accumulative_counts {count}: the '
                'gradients of a step begun would be lost on --resume. Set it to '
                f'{-(-number // count) * count}, or leave accumulative_counts out and use '
                f'--accumulate {count}, which multiplies all that counts iterations'
            )


def schedules(cfg: Config) -> list[Any]:
    """All parameter schedules of a config, which may have none, one or several."""
    found = cfg.get('param_scheduler') or []
    return [found] if isinstance(found, dict) else list(found)
