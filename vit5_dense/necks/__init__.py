"""Necks, registered at mmengine's root registry."""

from .simple_pyramid import SimplePyramid

__all__ = ['SimplePyramid']
