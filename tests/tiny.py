"""The small ViT-5 that most tests use, and what they do with it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import oracle
from vit5_dense import ViT5

TINY = {'embed_dims': 32, 'depth': 3, 'num_heads': 2}
STEM = {'cls_token', 'reg_token', 'pos_embed', 'patch_embed.proj.weight', 'patch_embed.proj.bias'}
Make = Callable[..., ViT5]


def half_on_cpu() -> bool:
    """Whether this torch convolves and multiplies fp16 on a CPU; torch 2.1 does not."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float16)
    try:
        F.conv2d(one, one)
        F.linear(one, one[0, 0])
    except RuntimeError:
        return False
    return True


FLOAT16 = pytest.param(
    'float16',
    marks=pytest.mark.skipif(not half_on_cpu(), reason='no fp16 on the CPU in this torch'),
)


def picture(height: int, width: int, batch: int = 1) -> Tensor:
    """Random normalised pictures (batch, 3, height, width)."""
    return torch.randn(batch, 3, height, width)


def expected_tokens(model: ViT5, x: Tensor, **options: Any) -> list[Tensor]:
    """The oracle's tokens after every block of a model that ``make_vit5`` built."""
    return oracle.vit5_tokens(dict(model.named_parameters()), x, 2, (4, 4), **options)[1:]


def gradients(model: ViT5, x: Tensor) -> dict[str, Tensor]:
    """Gradient of a fixed weighted sum of all maps; parameters without one are left out."""
    model.zero_grad()
    probe = torch.Generator().manual_seed(3)
    sum((out * torch.randn(out.shape, generator=probe)).sum() for out in model(x)).backward()
    return {
        name: param.grad.clone()
        for name, param in model.named_parameters()
        if param.grad is not None
    }
