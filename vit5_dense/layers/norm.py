"""Normalisation: RMSNorm for tokens, LayerNorm2d for maps."""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from .modes import is_eager

__all__ = ['LayerNorm2d', 'RMSNorm', 'rms_norm']


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """One over the root mean square of the last dimension, (..., 1)."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()


class _EagerRMSNorm(torch.autograd.Function):
    """The norm with a gradient in closed form: half the passes of the recorded operators.

    With n = x / rms(x) and g the gradient of n * weight, the gradient of x is
    (g * weight - n * mean(g * weight * n)) / rms(x), and that of the weight sums g * n.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = inverse_rms(x, eps)
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, inverse = ctx.saved_tensors
        normed = x * inverse
        product = grad * normed
        # Leading dimensions first: sums of whole rows are the fast kind.
        grad_weight = product.flatten(0, -weight.dim() - 1).sum(0).sum_to_size(weight.shape)
        mean = product.mul_(weight).mean(-1, keepdim=True)
        grad_x = (grad * weight).addcmul_(normed, mean, value=-1).mul_(inverse)
        return grad_x, grad_weight, None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide the last dimension by its root mean square and scale it.

    Args:
        x: Values, (..., C), fp32.
        weight: Scale, (C,) or any shape that broadcasts to that of ``x``, fp32.
        eps: Added to the mean square.

    Returns:
        Normalised values, (..., C), fp32.
    """
    if not is_eager():
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    if x.is_cuda and hasattr(F, 'rms_norm'):  # one fused kernel, since torch 2.4
        if weight.dim() == 1:
            return F.rms_norm(x, weight.shape, weight, eps)
        return F.rms_norm(x, x.shape[-1:], None, eps) * weight
    if torch.is_grad_enabled():
        return _EagerRMSNorm.apply(x, weight, eps)
    return (x * inverse_rms(x, eps)).mul_(weight)


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
