"""The transformer block of ViT-5."""

import torch
from timm.layers import DropPath, Mlp
from torch import Tensor, nn

from .attention import Attention
from .norm import RMSNorm
from .rope import Rotation
from .tokens import TokenLayout


class Block(nn.Module):
    """Pre-norm block: attention, then MLP, each scaled per channel (LayerScale) and droppable.

    Args:
        dim: Width C.
        num_heads: Number of attention heads.
        window_size: See ``Attention``.
        drop_path: Probability to drop a branch for a sample while training.
        layer_scale_init: Initial value of both LayerScale vectors.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        window_size: int | None = None,
        drop_path: float = 0.0,
        layer_scale_init: float = 1e-4,
    ) -> None:
        super().__init__()
        self.norm1 = RMSNorm(dim)
        self.attn = Attention(dim, num_heads, window_size)
        self.gamma_1 = nn.Parameter(torch.full((dim,), layer_scale_init))
        self.norm2 = RMSNorm(dim)
        self.mlp = Mlp(dim, 4 * dim)
        self.gamma_2 = nn.Parameter(torch.full((dim,), layer_scale_init))
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, rotation: Rotation, layout: TokenLayout) -> Tensor:
        """Update all tokens.

        Args:
            x: All tokens, (B, N, C).
            rotation: Cosines and sines of all tokens, (N, D / 2) each.
            layout: Order of the N tokens.

        Returns:
            Updated tokens, (B, N, C).
        """
        x = x + self.drop_path(self.gamma_1 * self.attn(self.norm1(x), rotation, layout))
        return x + self.drop_path(self.gamma_2 * self.mlp(self.norm2(x)))
