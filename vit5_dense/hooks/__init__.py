"""Hooks, registered at mmengine's root registry."""

from .exact import ViT5ExactHook
from .interrupt import ViT5InterruptHook
from .non_finite import ViT5NonFiniteHook
from .param_scheduler import ViT5ParamSchedulerHook
from .plain_checkpoint import ViT5PlainCheckpointHook
from .regular_checkpoint import ViT5CheckpointHook
from .stability import ViT5StabilityHook
from .strict_load import ViT5StrictLoadHook
from .val_loss import ViT5ValLossHook

__all__ = [
    'ViT5CheckpointHook',
    'ViT5ExactHook',
    'ViT5InterruptHook',
    'ViT5NonFiniteHook',
    'ViT5ParamSchedulerHook',
    'ViT5PlainCheckpointHook',
    'ViT5StabilityHook',
    'ViT5StrictLoadHook',
    'ViT5ValLossHook',
]
