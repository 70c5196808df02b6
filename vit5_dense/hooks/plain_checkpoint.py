"""Checkpoints that load with ``weights_only=True``."""

from typing import Any

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..backbones import ViT5

HISTORY = '__history__'


def to_plain(value: Any) -> Any:
    """Tensors, numbers, strings and containers in place of numpy values and history buffers."""
    if isinstance(value, HistoryBuffer):
        log, counts = value.data
        return {HISTORY: True, 'log': to_plain(log), 'counts': to_plain(counts)}
    if isinstance(value, np.ndarray):
        numbers = value.dtype.kind in 'biufc'
        return torch.from_numpy(value.copy()) if numbers else to_plain(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):  # a named tuple becomes a plain one
        return [*map(to_plain, value)] if isinstance(value, list) else (*map(to_plain, value),)
    return value


def from_plain(value: Any) -> Any:
    """The history buffers that ``to_plain`` took apart."""
    if isinstance(value, dict):
        if HISTORY in value:
            return HistoryBuffer(value['log'].tolist(), value['counts'].tolist())
        return {key: from_plain(item) for key, item in value.items()}
    return value


@HOOKS.register_module()
class ViT5PlainCheckpointHook(Hook):
    """Keeps Python objects out of saved checkpoints, and notes what model they are of.

    mmengine stores its message hub with numpy arrays and objects of its own, which makes every
    checkpoint unreadable to ``torch.load(weights_only=True)``. They are saved as tensors and
    numbers, and restored when a run resumes. ``meta`` gets the version of this package and the
    sizes of the backbone, and loses the path of the annotations.
    """

    priority = 'LOWEST'  # after hooks that add to the checkpoint

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Take the objects apart."""
        from .. import __version__

        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        sizes = model.backbone.sizes if isinstance(getattr(model, 'backbone', None), ViT5) else {}
        checkpoint['meta']['vit5_dense'] = {'version': __version__, **sizes}
        checkpoint['meta'].get('dataset_meta', {}).pop('ann_file', None)
        for key in ('message_hub', 'meta'):
            checkpoint[key] = to_plain(checkpoint[key])

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Put the objects together again."""
        if 'message_hub' in checkpoint:
            checkpoint['message_hub'] = from_plain(checkpoint['message_hub'])
