"""Normalisation: RMSNorm for tokens, LayerNorm2d for maps."""

import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d
from torch import Tensor, nn

__all__ = ['LayerNorm2d', 'RMSNorm']


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide the last dimension by its root mean square and scale it.

    Args:
        x: Values, (..., C), fp32.
        weight: Scale per channel, (C,), fp32.
        eps: Added to the mean square.

    Returns:
        Normalised values, (..., C), fp32.
    """
    if hasattr(F, 'rms_norm'):  # since torch 2.4
        return F.rms_norm(x, weight.shape, weight, eps)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


class RMSNorm(nn.Module):
    """Root mean square norm without centring and without bias.

    Statistics and scaling are computed in fp32 and the result is cast back, so that a bf16 or fp16
    module, and autocast, leave in the type that came in.

    Args:
        dim: Number of channels C of the last dimension.
        eps: Added to the mean square. ViT-5 was trained with 1e-6.
    """

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., C); shape and type stay."""
        return rms_norm(x.float(), self.weight.float(), self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f'{self.weight.numel()}, eps={self.eps}'
