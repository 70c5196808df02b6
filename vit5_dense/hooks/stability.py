"""Figures of a ViT-5 that show trouble before the loss does."""

import logging
import math
from typing import Any

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn

from ..backbones import ViT5
from ..layers import TokenLayout
from ..layers.attention import Attention
from .common import before_step, gradient_norms, unwrapped

# Kind of figure: the value beyond which it is told of once, what that means and what helps.
LIMITS = {
    'layer_scale': (
        10,
        'the branches of a block outgrow its input. Start with a smaller '
        'model.backbone.layer_scale_init, or lower optim_wrapper.optimizer.lr by 20 %',
    ),
    'attention_logit': (
        100,
        'softmax picks single tokens and hardly learns. Check q_norm and k_norm of the checkpoint, '
        'warm up longer (end of LinearLR), or lower optim_wrapper.optimizer.lr by 20 %',
    ),
    'grad_norm': (
        1000,
        'gradients explode. Set optim_wrapper.clip_grad.max_norm=1, warm up longer (end of '
        'LinearLR), or lower optim_wrapper.optimizer.lr by 20 %',
    ),
    'patch_outlier': (
        10,
        'patches serve as memory and attention maps blur. Use a model with more registers '
        '(model.backbone.num_registers: 4 to 8 in pre-training)',
    ),
}


def largest_logit(attention: Attention, qkv: Tensor) -> Tensor:
    """Upper bound of the attention logits of one picture, before the softmax.

    Args:
        attention: Its norms are applied. RoPE, which keeps lengths, is not.
        qkv: What its ``qkv`` gave, (B, N, 3 * C); the first picture counts.

    Returns:
        The longest query times the longest key over sqrt(D), of the head where that is largest.
    """
    qkv = qkv[:1].float().unflatten(2, (3, attention.num_heads, -1))  # (1, N, 3, heads, D)
    q, k, _ = qkv.unbind(2)
    lengths = [norm(x).norm(dim=-1) for norm, x in ((attention.q_norm, q), (attention.k_norm, k))]
    bound = lengths[0].amax(1) * lengths[1].amax(1)  # (1, heads)
    return bound.max() / math.sqrt(q.shape[-1])


def token_norms(tokens: Tensor, layout: TokenLayout) -> dict[str, Tensor]:
    """Mean length of each kind of token (B, N, C), and of the longest patch over the mean."""
    patches = layout.patches(tokens).float().norm(dim=-1)
    specials = layout.specials(tokens).float().norm(dim=-1)  # (B, 1+R)
    cls, registers = specials.split((1, layout.num_registers), 1)
    norms = {'token_norm/cls': cls.mean(), 'token_norm/patches': patches.mean()}
    if layout.num_registers:
        norms['token_norm/registers'] = registers.mean()
    return norms | {'patch_outlier': patches.max() / patches.mean()}


def depth_norms(backbone: ViT5, named: list[tuple[str, nn.Parameter]]) -> dict[str, Tensor]:
    """Norm of the gradient at each depth of the backbone, and of all that comes after it."""
    names, norms = gradient_norms(named)
    squares: dict[str, Tensor] = {}
    for name, square in zip(names, norms.square(), strict=True):
        depth, num_depths = backbone.get_layer_depth(name, 'backbone.')
        part = 'heads' if depth == num_depths - 1 else f'block{depth - 1}' if depth else 'stem'
        key = f'grad_norm/{part}'
        squares[key] = squares.get(key, 0) + square
    return {key: square.sqrt() for key, square in squares.items()}


@HOOKS.register_module()
class ViT5StabilityHook(Hook):
    """Logs LayerScale, attention logits, token lengths and gradients, and warns in words.

    By block: mean |gamma|, upper bound of the attention logits, norm of the gradient. After the
    last block: mean length of CLS, registers and patches, longest patch over the mean. They become
    curves in ``scalars.json`` and in ``report.png``. Between samples it costs nothing. A compiled
    backbone gives neither logits nor token lengths.

    Args:
        interval: Iterations from one sample to the next.
    """

    def __init__(self, interval: int = 50) -> None:
        self.interval = interval
        self._backbone: Any = None
        self._named: list[tuple[str, nn.Parameter]] = []
        self._values: dict[str, Tensor] = {}
        self._handles: list[Any] = []
        self._due = False  # gradients are sampled at the next step, which may be iterations away
        self._told: set[str] = set()

    def before_train(self, runner: Runner) -> None:
        """Find the backbone."""
        model = unwrapped(runner)
        backbone = getattr(model, 'backbone', None)
        if not isinstance(backbone, ViT5):
            print_log('No figures of stability: the backbone is no ViT5', logger='current')
        elif is_main_process():
            self._backbone, self._named = backbone, [*model.named_parameters()]
            before_step(runner.optim_wrapper, lambda: self._sample_gradients(runner))

    def before_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        """Watch one forward pass."""
        if not self._backbone or not self.every_n_train_iters(runner, self.interval):
            return
        self._due = True
        blocks = self._backbone.blocks
        for i, block in enumerate(blocks):
            watch = self._watch_logits(i, block.attn)
            self._handles.append(block.attn.qkv.register_forward_hook(watch))
        self._handles.append(blocks[-1].register_forward_hook(self._watch_tokens))

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        """Log what was seen."""
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        for i, block in enumerate(self._backbone.blocks):
            gammas = torch.cat((block.gamma_1, block.gamma_2)).detach()
            self._values[f'layer_scale/block{i}'] = gammas.float().abs().mean()
        self._log(runner, self._values)
        self._handles, self._values = [], {}

    def _watch_logits(self, index: int, attention: Attention) -> Any:
        @torch.no_grad()
        def look(module: nn.Module, args: Any, output: Tensor) -> None:
            self._values[f'attention_logit/block{index}'] = largest_logit(attention, output)

        return look

    @torch.no_grad()
    def _watch_tokens(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self._values |= token_norms(output, args[2])

    def _sample_gradients(self, runner: Runner) -> None:
        if not self._due:
            return
        self._due = False
        scaler = getattr(runner.optim_wrapper, 'loss_scaler', None)
        scale = scaler.get_scale() if scaler else 1.0
        norms = depth_norms(self._backbone, self._named)
        self._log(runner, {key: norm / scale for key, norm in norms.items()})

    def _log(self, runner: Runner, values: dict[str, Tensor]) -> None:
        numbers = torch.stack(list(values.values())).tolist()  # the only wait for a GPU
        figures = dict(zip(values, numbers, strict=True))
        runner.visualizer.add_scalars(figures, step=runner.iter + 1)
        for key, value in figures.items():
            kind = key.split('/')[0]
            limit, remedy = LIMITS.get(kind, (math.inf, ''))
            if value > limit and kind not in self._told:
                self._told.add(kind)
                print_log(
                    f'iteration {runner.iter + 1}: {key} is {value:.3g}, above {limit}: {remedy}',
                    logger='current',
                    level=logging.WARNING,
                )
