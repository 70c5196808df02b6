"""What several hooks need of a runner: the model, and gradients before the optimiser's step."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor, nn


def unwrapped(runner: Runner) -> Any:
    """The model of a runner, without DDP around it."""
    return runner.model.module if is_model_wrapper(runner.model) else runner.model


def before_step(optim_wrapper: Any, call: Callable[[], None]) -> None:
    """Have a function called before every step of an optimiser, before gradients are clipped.

    Args:
        optim_wrapper: mmengine's; it takes one step for all batches whose gradients it adds up.
        call: Finds the gradients in the parameters; an exception prevents the step.
    """
    step = optim_wrapper.step

    @functools.wraps(step)  # schedules look for a mark on it
    def call_and_step(**kwargs: Any) -> None:
        call()
        step(**kwargs)

    optim_wrapper.step = call_and_step


def gradient_norms(named: list[tuple[str, nn.Parameter]]) -> tuple[list[str], Tensor]:
    """Norms of the gradients, one for each parameter.

    Args:
        named: Names and parameters; those without a gradient are left out.

    Returns:
        The names left, and a norm for each of them, in fp32.
    """
    grads = {name: param.grad for name, param in named if param.grad is not None}
    if not grads:
        return [], torch.zeros(0)
    norms = torch._foreach_norm([*grads.values()])  # one kernel, not one for each parameter
    return list(grads), torch.stack([norm.float() for norm in norms])
