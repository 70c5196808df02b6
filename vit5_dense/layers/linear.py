"""Matrix products by the kernels that suit the processor."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .modes import is_eager, is_exported
from .processor import AMD, CAPABILITY

# Without AVX-512 an x86 processor multiplies bf16 and fp16 seven times slower than fp32.
SLOW_HALF = CAPABILITY == 'AVX2'
HALF = (torch.bfloat16, torch.float16)
MIN_VALUES = 2**14  # of the input; a convolution of fewer costs more than the product


# MKL, which computes products in fp32, takes AMD processors for slower ones than they are: with
# AVX-512 it uses half of their width. oneDNN, which computes convolutions, does not.
SLOW_PRODUCTS = AMD and torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()


def autocast_dtype() -> torch.dtype | None:
    """The type to which autocast on the CPU casts; None where it is off."""
    if hasattr(torch, 'get_autocast_dtype'):  # since torch 2.4
        return torch.get_autocast_dtype('cpu') if torch.is_autocast_enabled('cpu') else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear`` as a convolution over one row of pixels."""
    pixels = x.contiguous().view(1, 1, -1, x.shape[-1]).permute(0, 3, 1, 2)  # (1, C, 1, tokens)
    out = F.conv2d(pixels, weight[:, :, None, None], bias)  # (1, D, 1, tokens)
    return out.permute(0, 2, 3, 1).reshape(*x.shape[:-1], len(weight))


if hasattr(torch.library, 'custom_op'):  # since torch 2.4
    # A compiler that sees the convolution copies its input to another order of channels.
    @torch.library.custom_op('vit5_dense::convolve', mutates_args=())
    def opaque_convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``convolve`` without gradients, as one operator."""
        return convolve(x, weight, bias)

    @opaque_convolve.register_fake
    def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x.new_empty(*x.shape[:-1], len(weight))


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear`` on a CPU without autocast, by convolution where that is faster."""
    if not SLOW_PRODUCTS or is_exported() or not x.dtype == weight.dtype == torch.float32:
        return F.linear(x, weight, bias)
    if is_eager() and x.numel() < MIN_VALUES:  # a compiled graph is for all sizes
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():  # the gradients of a convolution pay only with AVX-512
        return convolve(x, weight, bias) if CAPABILITY == 'AVX512' else F.linear(x, weight, bias)
    return convolve(x, weight, bias) if is_eager() else opaque_convolve(x, weight, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``, on a CPU by the kernels that suit it.

    In half precision the product is computed in fp32 where the processor is slow in half
    precision, in fp32 by oneDNN where MKL is slow. Type and shape of the result are those of
    ``F.linear``, under autocast as well; values differ by rounding.

    Args:
        x: Values, (..., C).
        weight: (D, C).
        bias: (D,).

    Returns:
        Products, (..., D).
    """
    if x.device.type != 'cpu':
        return F.linear(x, weight, bias)
    cast = autocast_dtype()
    dtype = cast or x.dtype
    if SLOW_HALF and dtype in HALF:
        with torch.autocast('cpu', enabled=False):
            bias = None if bias is None else bias.float()
            return product(x.float(), weight.float(), bias).to(dtype)
    return F.linear(x, weight, bias) if cast else product(x, weight, bias)


class Linear(nn.Linear):
    """``nn.Linear`` through ``linear``."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return linear(x, self.weight, self.bias)
