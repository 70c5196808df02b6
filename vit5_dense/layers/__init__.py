"""The parts of ViT-5, in plain torch and timm.layers."""

from .attention import Attention
from .block import Block
from .norm import LayerNorm2d, RMSNorm
from .pos_embed import resample_pos_embed
from .rope import axial_angles, rotate, token_rotation
from .tokens import TokenLayout
from .window import merge_windows, split_windows, window_padding_mask

__all__ = [
    'Attention',
    'Block',
    'LayerNorm2d',
    'RMSNorm',
    'TokenLayout',
    'axial_angles',
    'merge_windows',
    'resample_pos_embed',
    'rotate',
    'split_windows',
    'token_rotation',
    'window_padding_mask',
]
