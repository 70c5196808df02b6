"""Backbones, registered at mmengine's root registry."""

from .lora import ViT5LoRA
from .vit5 import ViT5

__all__ = ['ViT5', 'ViT5LoRA']
