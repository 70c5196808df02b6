"""Backbones, registered at mmengine's root registry."""

from .vit5 import ViT5

__all__ = ['ViT5']
