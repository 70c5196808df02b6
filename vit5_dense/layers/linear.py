"""Matrix products, also where the processor has none for half precision."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Without AVX-512 an x86 processor multiplies bf16 and fp16 seven times slower than fp32.
SLOW_HALF = torch.backends.cpu.get_cpu_capability() == 'AVX2'
HALF = (torch.bfloat16, torch.float16)


def autocast_dtype() -> torch.dtype | None:
    """The type to which autocast on the CPU casts; None where it is off."""
    if hasattr(torch, 'get_autocast_dtype'):  # since torch 2.4
        return torch.get_autocast_dtype('cpu') if torch.is_autocast_enabled('cpu') else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``, computed in fp32 where the processor is slow in half precision.

    Type and shape of the result are those of ``F.linear``, under autocast as well.

    Args:
        x: Values, (..., C).
        weight: (D, C).
        bias: (D,).

    Returns:
        Products, (..., D).
    """
    if SLOW_HALF and x.device.type == 'cpu':
        dtype = autocast_dtype() or x.dtype
        if dtype in HALF:
            with torch.autocast('cpu', enabled=False):
                bias = None if bias is None else bias.float()
                return F.linear(x.float(), weight.float(), bias).to(dtype)
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """``nn.Linear`` through ``linear``."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return linear(x, self.weight, self.bias)
