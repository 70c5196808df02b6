"""Hooks, registered at mmengine's root registry."""

from .interrupt import ViT5InterruptHook
from .plain_checkpoint import ViT5PlainCheckpointHook

__all__ = ['ViT5InterruptHook', 'ViT5PlainCheckpointHook']
