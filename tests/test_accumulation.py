from typing import Any

import pytest
from mmengine.config import Config

from tiny_run import REPO
from vit5_dense.accumulation import accumulate, check_intervals
from vit5_dense.config import load_config
from vit5_dense.errors import UserError

RECIPE = str(REPO / 'configs' / 'upernet_vit5_b_ade20k.py')


def test_iterations_are_multiplied_and_schedules_stay() -> None:
    before, cfg = load_config(RECIPE), load_config(RECIPE)
    accumulate(cfg, 4)
    assert cfg.optim_wrapper.accumulative_counts == 4
    assert (cfg.train_cfg.max_iters, cfg.train_cfg.val_interval) == (640000, 64000)
    assert cfg.param_scheduler == before.param_scheduler
    assert cfg.default_hooks.param_scheduler == {'type': 'ViT5ParamSchedulerHook'}
    assert cfg.default_hooks.checkpoint.interval == 4 * before.default_hooks.checkpoint.interval
    assert cfg.default_hooks.logger.interval == 200
    (stability,) = [hook for hook in cfg.custom_hooks if hook.type == 'ViT5StabilityHook']
    assert stability.interval == 200
    assert cfg.auto_scale_lr.base_batch_size == 4


def test_one_changes_nothing() -> None:
    before, cfg = load_config(RECIPE), load_config(RECIPE)
    accumulate(cfg, 1)
    assert cfg.to_dict() == before.to_dict()


def config(**changes: Any) -> Config:
    return Config({'optim_wrapper': {}, 'train_cfg': {'max_iters': 10}, **changes})


def test_what_mmengine_would_take_for_granted_is_written_down() -> None:
    hooks = [{'type': 'EMAHook'}]
    cfg = config(param_scheduler={'type': 'PolyLR', 'by_epoch': False}, custom_hooks=hooks)
    cfg.train_cfg.dynamic_intervals = [(8, 1)]
    accumulate(cfg, 3)
    assert cfg.param_scheduler.end == 10
    assert cfg.train_cfg.val_interval == 3000
    assert cfg.train_cfg.dynamic_intervals == [(24, 3)]
    assert cfg.default_hooks.logger.interval == 30
    assert cfg.custom_hooks[0].interval == 3


def test_epochs_are_left_alone() -> None:
    loop = {'max_epochs': 12, 'val_interval': 2}
    schedule = {'type': 'MultiStepLR', 'by_epoch': True, 'milestones': [8, 11]}
    hooks = {'checkpoint': {'type': 'CheckpointHook', 'interval': 1}}
    cfg = config(train_cfg=loop, param_scheduler=[schedule], default_hooks=hooks)
    accumulate(cfg, 4)
    assert cfg.train_cfg == loop
    assert cfg.param_scheduler == [schedule]
    assert cfg.default_hooks.checkpoint.interval == 1


@pytest.mark.parametrize(
    ('count', 'changes', 'part'),
    [
        (0, {}, '--accumulate 0'),
        (2, {'optim_wrapper': {'accumulative_counts': 8}}, 'accumulative_counts=8'),
        (2, {'param_scheduler': [{'type': 'A', 'convert_to_iter_based': True}]}, 'convert_to_iter'),
        (
            2,
            {'train_cfg': {'max_epochs': 3}, 'param_scheduler': {'type': 'A', 'by_epoch': False}},
            'A has no end',
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(count: int, changes: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError, match=part):
        accumulate(config(**changes), count)


@pytest.mark.parametrize(
    ('count', 'loop', 'hook', 'part'),
    [
        (
            3,
            {'val_interval': 9},
            {'interval': 10},
            r'checkpoint\.interval 10 .* Set it to 12, .*-ate 3',
        ),
        (3, {'val_interval': 10}, {'interval': 9}, r'val_interval 10 is no multiple'),
        (3, {}, {'interval': 9}, r'val_interval 1000 is no multiple'),
        (3, {'val_interval': 9}, {'interval': 9, 'save_begin': 4}, 'save_begin 4 is no multiple'),
        (3, {'val_interval': 9}, {'interval': 9}, ''),
        (3, {'val_interval': 9}, {'interval': -1}, ''),
        (1, {'val_interval': 9}, {'interval': 10}, ''),
        (3, {'max_iters': None, 'max_epochs': 2}, {'interval': 1, 'by_epoch': True}, ''),
    ],
)
def test_nothing_is_saved_or_validated_between_two_steps(
    count: int, loop: dict[str, Any], hook: dict[str, Any], part: str
) -> None:
    cfg = config(
        optim_wrapper={'accumulative_counts': count},
        train_cfg={'max_iters': 100, **loop},
        default_hooks={'checkpoint': {'by_epoch': False, **hook}},
        val_dataloader={'batch_size': 1},
    )
    if not part:
        check_intervals(cfg)
        return
    with pytest.raises(UserError, match=part.replace('-ate', '--accumulate')):
        check_intervals(cfg)


def test_without_validation_its_interval_is_of_no_concern() -> None:
    hooks = {'checkpoint': {'by_epoch': False, 'interval': 9}}
    check_intervals(config(optim_wrapper={'accumulative_counts': 3}, default_hooks=hooks))
