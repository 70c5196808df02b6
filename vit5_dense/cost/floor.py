"""The least that a ViT-5 can cost: its matrix products and attention calls, nothing else."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..backbones import ViT5


class Floor(nn.Module):
    """Matrix products and ``scaled_dot_product_attention`` of a ViT-5, on the same sizes and types.

    Norms, biases, rotations, LayerScale, activations, residual sums and copies are left out, so
    that the values mean nothing. No implementation on these kernels can be faster.

    Args:
        model: Its sizes are taken and which blocks have windows; its weights are not.
        product: What multiplies: ``F.linear``, or ``linear`` of our layers.
    """

    def __init__(self, model: ViT5, product: Callable[..., Tensor] = F.linear) -> None:
        super().__init__()
        self.product = product
        width = model.embed_dims
        self.num_heads = width // model.head_dim
        self.num_specials = 1 + model.num_registers
        self.patch_size = model.patch_size
        attention: list[Any] = [block.attn for block in model.blocks]
        self.windows: list[int | None] = [part.window_size for part in attention]
        shapes = [(width, model.patch_embed.proj.weight[0].numel())]
        for _ in model.blocks:
            shapes += [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(s) * s[1] ** -0.5) for s in shapes)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) of pictures (B, 3, H, W) whose sides are whole patches."""
        patches = x.unflatten(2, (-1, self.patch_size)).flatten(3)  # (B, 3, h, p*W)
        patches = patches.reshape(len(x), -1, self.weights[0].shape[1])  # (B, h*w, 3*p*p)
        x = F.pad(self.product(patches, self.weights[0]), (0, 0, 0, self.num_specials))  # (B, N, C)
        layers = zip(*[iter(self.weights[1:])] * 4, strict=True)
        for (qkv, proj, up, down), window in zip(layers, self.windows, strict=True):
            # Taken as it lies in memory: which value is whose does not matter here.
            q, k, v = self.product(x, qkv).view(3, len(x), self.num_heads, x.shape[1], -1)
            mixed = self.attend(q, k, v, window)
            x = self.product(mixed.reshape(x.shape), proj)
            x = self.product(self.product(x, up), down)
        return x

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """As many values as ``q`` has, of (B, heads, N, D); with windows in two calls."""
        if window is None:
            return F.scaled_dot_product_attention(q, k, v)
        specials = F.scaled_dot_product_attention(q[:, :, -self.num_specials :], k, v)
        area = window**2
        count = len(q) * (q.shape[2] - self.num_specials) // area
        shape = (count, self.num_heads, area, q.shape[3])
        queries = q.reshape(-1)[: math.prod(shape)].view(shape)
        # A window's keys overlap those of the next, which saves the copy.
        strides = (self.num_heads * area * shape[3], area * shape[3], shape[3], 1)
        keys = (count, self.num_heads, area + self.num_specials, shape[3])
        k, v = (x.as_strided(keys, strides) for x in (k, v))
        patches = F.scaled_dot_product_attention(queries, k, v)
        return torch.cat((patches.reshape(-1), specials.reshape(-1)))
