"""Checkpoints that load with ``weights_only=True``."""

from typing import Any

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from mmengine.registry import HOOKS
from mmengine.runner import Runner

HISTORY = '__history__'


def to_plain(value: Any) -> Any:
    """Tensors, numbers, strings and containers in place of numpy values and history buffers."""
    if isinstance(value, HistoryBuffer):
        log, counts = value.data
        return {HISTORY: True, 'log': to_plain(log), 'counts': to_plain(counts)}
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_plain(item) for item in value)
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
    """Keeps Python objects out of saved checkpoints.

    mmengine stores its message hub with numpy arrays and objects of its own, which makes every
    checkpoint unreadable to ``torch.load(weights_only=True)``. They are saved as tensors and
    numbers, and restored when a run resumes.
    """

    priority = 'LOWEST'  # after hooks that add to the checkpoint

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Take the objects apart."""
        for key in ('message_hub', 'meta'):
            checkpoint[key] = to_plain(checkpoint[key])

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Put the objects together again."""
        if 'message_hub' in checkpoint:
            checkpoint['message_hub'] = from_plain(checkpoint['message_hub'])
