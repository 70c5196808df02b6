"""A run that stops at the first loss or gradient that is no number, and says where it began."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import all_reduce, is_distributed
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn

from ..errors import UserError
from .common import before_step, gradient_norms, unwrapped

REMEDY = (
    'Look at these pictures and their labels. If they are sound, go on from the last checkpoint '
    '(--resume) with optim_wrapper.optimizer.lr 20 % lower; a run from random weights can also '
    'start with a smaller model.backbone.layer_scale_init'
)


def is_bad(value: Any) -> bool:
    """Whether NaN or infinity is in a tensor, also within lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return value.is_floating_point() and not bool(value.isfinite().all())
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return any(map(is_bad, value))


def first_bad_module(model: nn.Module, run: Callable[[], Any]) -> tuple[str, Any]:
    """Where NaN or infinity appears first while a model runs.

    Args:
        model: Watched with all modules in it; from here on none of them runs compiled.
        run: Runs the model. It is not cut short, so that processes which run together stay so.

    Returns:
        Words such as 'output of backbone.blocks.3.mlp.fc2', '' if all modules give finite values;
        and what ``run`` returned.
    """
    found: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def look(module: nn.Module, args: Any, output: Any) -> None:
            for side, value in (('input', args), ('output', output)):
                if not found and is_bad(value):
                    found.append(f'{side} of {name}')

        return look

    handles = []
    for name, module in model.named_modules():
        module._compiled_call_impl = None  # it would skip the hooks
        handles.append(module.register_forward_hook(watch(name or type(model).__name__)))
    result = run()
    for handle in handles:
        handle.remove()
    return ''.join(found), result


def in_any_process(flag: Tensor) -> bool:
    """Whether a flag is set here or in another process of a distributed run."""
    if not is_distributed():
        return bool(flag)
    flag = flag.float()
    all_reduce(flag, op='max')
    return bool(flag)


@HOOKS.register_module()
class ViT5NonFiniteHook(Hook):
    """Stops before the optimiser's step when the loss or a gradient is NaN or infinite.

    The message names the pictures and where it began: for a loss the first module, in the order of
    the forward pass, that gives such values (found by a second run of the same batch with the same
    random numbers); for a gradient the parameter nearest to the loss. Nothing is saved after that:
    the last checkpoint stays good. All processes of a distributed run stop together. With loss
    scaling (fp16) infinite gradients are normal; they are left to the scaler until its scale has
    fallen below 1.

    It costs one reading of the loss in each iteration and the norms of the gradients in each step.

    Raises:
        UserError: At the first such loss or gradient.
    """

    priority = 'LOWEST'  # after whatever draws random numbers or seeds them

    def __init__(self) -> None:
        self._files: list[str] = []  # of all batches since the last step
        self._batch: Any = None
        self._random: list[Tensor] = []

    def before_train(self, runner: Runner) -> None:
        """Come between the loss and the backward pass, and between that and the step."""
        optim = runner.optim_wrapper
        update_params = optim.update_params
        named = [*unwrapped(runner).named_parameters()]

        def check_and_update(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            if in_any_process(~loss.detach().isfinite()):
                raise UserError(self._explain_loss(runner, loss.item()))
            update_params(loss, *args, **kwargs)

        def check_gradients() -> None:
            norms = gradient_norms(named)[1]
            if not bool(norms.isfinite().all()):
                self._judge_gradients(runner, named)
            self._files.clear()

        optim.update_params = check_and_update
        before_step(optim, check_gradients)

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Keep what a second run of the batch needs."""
        self._batch = data_batch
        samples = data_batch.get('data_samples', ()) if isinstance(data_batch, dict) else ()
        self._files += [getattr(sample, 'img_path', '?') for sample in samples]
        self._random = [torch.get_rng_state()]
        if torch.cuda.is_available():
            self._random.append(torch.cuda.get_rng_state())

    def _explain_loss(self, runner: Runner, loss: float) -> str:
        model = unwrapped(runner)
        torch.set_rng_state(self._random[0])
        if len(self._random) > 1:
            torch.cuda.set_rng_state(self._random[1])

        def run() -> Any:
            return model._run_forward(model.data_preprocessor(self._batch, True), mode='loss')

        with torch.no_grad(), runner.optim_wrapper.optim_context(model):
            where, losses = first_bad_module(model, run)
        if loss - loss == 0:
            return self._message(runner, 'the loss of another process is no finite number')
        text = f'the loss is {loss}'
        if names := [name for name, value in losses.items() if is_bad(value)]:
            text += f' ({", ".join(names)})'
        text += f'; it began in the {where}' if where else '; a second run of the batch was finite'
        if weights := [name for name, param in model.named_parameters() if is_bad(param)]:
            text += f'; {len(weights)} weights were not finite before, {weights[0]} the first'
        return self._message(runner, text)

    def _judge_gradients(self, runner: Runner, named: list[tuple[str, nn.Parameter]]) -> None:
        bad = [name for name, param in named if is_bad(param.grad)]
        scaler = getattr(runner.optim_wrapper, 'loss_scaler', None)
        if not bad or (scaler and scaler.get_scale() >= 1):
            return  # finite but for the square in the norm, or skipped by the scaler
        raise UserError(
            self._message(
                runner,
                f'{len(bad)} of {len(named)} gradients are not finite though the loss is; '
                f'nearest to the loss is that of {bad[-1]}',
            )
        )

    def _message(self, runner: Runner, fact: str) -> str:
        last = Path(runner.work_dir, 'last_checkpoint')
        saved = f'the last is {last.read_text().strip()}' if last.is_file() else 'there is none yet'
        return (
            f'iteration {runner.iter + 1}: {fact}. Pictures: {", ".join(self._files)}. Stopped '
            f'before the step; no checkpoint was written ({saved}). {REMEDY}'
        )
