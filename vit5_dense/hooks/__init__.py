"""Hooks, registered at mmengine's root registry."""

from .interrupt import ViT5InterruptHook
from .plain_checkpoint import ViT5PlainCheckpointHook
from .strict_load import ViT5StrictLoadHook

__all__ = ['ViT5InterruptHook', 'ViT5PlainCheckpointHook', 'ViT5StrictLoadHook']
