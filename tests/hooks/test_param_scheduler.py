from types import SimpleNamespace

import torch
from mmengine.optim import LinearLR, OptimWrapper
from torch import nn

from vit5_dense.hooks import ViT5ParamSchedulerHook


def rates(count: int, iterations: int) -> list[float]:
    """The rate in each step of the optimiser."""
    weight = nn.Parameter(torch.ones(1))
    optim = OptimWrapper(torch.optim.SGD([weight], lr=1.0), accumulative_counts=count)
    optim.initialize_count_status(nn.Identity(), 0, iterations)
    schedule = LinearLR(optim, start_factor=0.25, begin=0, end=4, by_epoch=False)
    runner = SimpleNamespace(optim_wrapper=optim, param_schedulers=[schedule])
    found = []
    optim.optimizer.register_step_pre_hook(lambda *args: found.append(optim.get_lr()['lr'][0]))
    for i in range(iterations):
        optim.update_params(weight.sum())
        ViT5ParamSchedulerHook().after_train_iter(runner, i)
    return found


def test_a_schedule_advances_once_in_a_step() -> None:
    expected = [0.25, 0.5, 0.75, 1.0]
    torch.testing.assert_close(rates(1, 4), expected)
    torch.testing.assert_close(rates(3, 12), expected)


def test_the_iterations_left_over_at_the_end_are_a_step() -> None:
    torch.testing.assert_close(rates(3, 7), [0.25, 0.5, 0.75])
