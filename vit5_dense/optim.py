"""Layer-wise decay of the learning rate, and mixed precision in bf16."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIM_WRAPPERS
from torch import nn


@OPTIM_WRAPPERS.register_module()
class ViT5BF16OptimWrapper(OptimWrapper):
    """Mixed precision with bf16 autocast, on a GPU or a CPU, without loss scaling.

    mmengine's ``AmpOptimWrapper`` refuses to work without a GPU. bf16 has the range of fp32, so
    that gradients need no scaling.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Forward passes in here run under autocast."""
        with super().optim_context(model), torch.autocast(get_device(), dtype=torch.bfloat16):
            yield


TOKENS = ('pos_embed', 'cls_token', 'reg_token')


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class ViT5LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Parameter groups with a learning rate that shrinks towards the stem of the backbone.

    A parameter at depth d of n depths, as told by ``model.backbone.get_layer_depth``, has the rate
    ``lr * layer_decay_rate ** (n - 1 - d)``; what lies outside the backbone has the full rate.
    Parameters of at most one dimension, the position embedding, CLS and registers have no weight
    decay. Frozen parameters are left out.

    ``paramwise_cfg`` takes ``layer_decay_rate`` (1 by default) and ``custom_keys``, a dict of
    ``{part of a name: dict(lr_mult=, decay_mult=)}``. Every key that a name contains multiplies
    what the rules above gave; none cancels them.

    Raises:
        ValueError: If ``paramwise_cfg`` has an unknown entry, ``layer_decay_rate`` is not in
            (0, 1], a custom key matches no parameter, or the backbone cannot tell depths.
    """

    paramwise_cfg: dict[str, Any]

    def _validate_cfg(self) -> None:
        super()._validate_cfg()
        # Not empty, since mmengine asks for groups only where there are options.
        self.paramwise_cfg = {'layer_decay_rate': 1.0, **self.paramwise_cfg}
        unknown = set(self.paramwise_cfg) - {'layer_decay_rate', 'custom_keys'}
        for options in self.paramwise_cfg.get('custom_keys', {}).values():
            unknown |= set(options) - {'lr_mult', 'decay_mult'}
        if unknown:
            raise ValueError(
                f'paramwise_cfg has unknown entries {sorted(unknown)}: '
                f'{type(self).__name__} takes layer_decay_rate and custom_keys of lr_mult and '
                'decay_mult'
            )
        if not 0 < self.paramwise_cfg['layer_decay_rate'] <= 1:
            raise ValueError(
                f'layer_decay_rate {self.paramwise_cfg["layer_decay_rate"]} must be in (0, 1]'
            )
        if self.base_lr is None or self.base_wd is None:
            raise ValueError('the optimizer needs both lr and weight_decay for layer-wise decay')

    def add_params(
        self, params: list[dict[str, Any]], module: nn.Module, prefix: str = '', **_: Any
    ) -> None:
        """Append one group for each pair of rate and decay to ``params`` and log them."""
        backbone: Any = getattr(module, 'backbone', None)
        if not hasattr(backbone, 'get_layer_depth'):
            raise ValueError(
                f'{type(module).__name__}.backbone is a {type(backbone).__name__}, which has no '
                'get_layer_depth: use a backbone that tells the depth of its parameters'
            )
        rate = self.paramwise_cfg['layer_decay_rate']
        custom_keys = self.paramwise_cfg.get('custom_keys', {})
        names = [name for name, _ in module.named_parameters()]
        for key in custom_keys:
            if not any(key in name for name in names):
                raise ValueError(f'custom key {key!r} is part of no parameter name of the model')

        groups: dict[tuple[float, float], dict[str, Any]] = {}
        for name, param in module.named_parameters():
            depth, num_depths = backbone.get_layer_depth(name, 'backbone.')
            if not param.requires_grad:
                continue
            lr_scale = rate ** (num_depths - 1 - depth)
            is_token = name.removeprefix('backbone.') in TOKENS
            decay_scale = 0.0 if param.ndim <= 1 or is_token else 1.0
            for key, options in custom_keys.items():
                if key in name:
                    lr_scale *= options.get('lr_mult', 1.0)
                    decay_scale *= options.get('decay_mult', 1.0)
            group = groups.setdefault(
                (lr_scale, decay_scale),
                {
                    'params': [],
                    'param_names': [],
                    'lr': self.base_lr * lr_scale,
                    'weight_decay': self.base_wd * decay_scale,
                },
            )
            group['params'].append(param)
            group['param_names'].append(name)
        params.extend(groups[key] for key in sorted(groups))
        rows = [f'{"lr":>10} {"decay":>8} tensors  first parameter']
        rows += [
            f'{g["lr"]:10.3g} {g["weight_decay"]:8.3g} {len(g["params"]):7d}  {g["param_names"][0]}'
            for g in params
        ]
        print_log('Parameter groups:\n' + '\n'.join(rows), logger='current')
