"""The transformer block of ViT-5."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from timm.layers import drop_path
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import Attention
from .linear import Linear
from .modes import is_eager
from .norm import RMSNorm
from .tokens import TokenLayout

ROWS = 1024  # tokens of a portion in which a CPU runs the MLP without gradients


class Mlp(nn.Module):
    """Two linear layers with a GELU between them.

    Args:
        dim: Width C.
        hidden_dim: Width between the layers.
        recompute_gelu: Keep the values before the GELU for the backward pass, not those after it.
    """

    def __init__(self, dim: int, hidden_dim: int, recompute_gelu: bool = False) -> None:
        super().__init__()
        self.recompute_gelu = recompute_gelu
        self.fc1 = Linear(dim, hidden_dim)
        self.fc2 = Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token of (B, N, C)."""
        if self.recompute_gelu and torch.is_grad_enabled():
            # It stops where the input of fc2 is there: no product is computed twice.
            tail = lambda x: self.fc2(F.gelu(x))  # noqa: E731
            drops = any(isinstance(part, nn.Dropout) and part.p for part in self.fc2.modules())
            return checkpoint(tail, self.fc1(x), use_reentrant=False, preserve_rng_state=drops)
        if not is_eager() or torch.is_grad_enabled() or x.is_cuda:
            return self.fc2(F.gelu(self.fc1(x)))
        # A CPU pays for large buffers with a page fault every 4 KB: take the tokens in portions.
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        portions = (tokens.flatten(0, -2).split(ROWS) for tokens in (x, out))
        for source, target in zip(*portions, strict=True):
            target.copy_(self.fc2(F.gelu(self.fc1(source))))
        return out


def add_branch(
    x: Tensor, branch: Callable[[Tensor], Tensor], gamma: Tensor, drop_prob: float
) -> Tensor:
    """Add a residual branch, scaled per channel, that is dropped at random for whole samples.

    What is dropped is not computed (a compiler, which needs fixed shapes, computes and discards
    it). The draw comes from the CPU's generator, so that no GPU is waited for. Where all samples
    are dropped one is computed and scaled by zero, so that every parameter has its gradient.

    Args:
        x: Tokens, (B, N, C).
        branch: Changes tokens of any number of samples, each by itself.
        gamma: LayerScale, (C,).
        drop_prob: Probability to drop the branch for a sample; the others are scaled by
            1 / (1 - drop_prob).

    Returns:
        Tokens, (B, N, C).
    """
    if drop_prob == 0:
        return torch.addcmul(x, gamma, branch(x))
    if not is_eager():
        return x + drop_path(gamma * branch(x), drop_prob, training=True)
    kept = (torch.rand(len(x), device='cpu') >= drop_prob).nonzero().squeeze(1)
    scale = 1 / (1 - drop_prob)
    if len(kept) == len(x):
        return torch.addcmul(x, gamma, branch(x), value=scale)
    if not len(kept):
        kept, scale = kept.new_zeros(1), 0.0
    kept = kept.to(x.device, non_blocking=True)
    update = gamma * branch(x[kept])
    return x.index_add(0, kept, update.to(x.dtype), alpha=scale)


class Block(nn.Module):
    """Pre-norm block: attention, then MLP, each scaled per channel (LayerScale) and droppable.

    Args:
        dim: Width C.
        num_heads: Number of attention heads.
        window_size: See ``Attention``.
        drop_path: Probability to drop a branch for a sample while training.
        layer_scale_init: Initial value of both LayerScale vectors.
        recompute_gelu: See ``Mlp``.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        window_size: int | None = None,
        drop_path: float = 0.0,
        layer_scale_init: float = 1e-4,
        recompute_gelu: bool = False,
    ) -> None:
        super().__init__()
        self.norm1 = RMSNorm(dim)
        self.attn = Attention(dim, num_heads, window_size)
        self.gamma_1 = nn.Parameter(torch.full((dim,), layer_scale_init))
        self.norm2 = RMSNorm(dim)
        self.mlp = Mlp(dim, 4 * dim, recompute_gelu)
        self.gamma_2 = nn.Parameter(torch.full((dim,), layer_scale_init))
        self.drop_path = drop_path

    def forward(self, x: Tensor, rotation: Tensor, layout: TokenLayout) -> Tensor:
        """Update all tokens.

        Args:
            x: All tokens, (B, N, C).
            rotation: Cosine and sine of all tokens, (N, D / 2, 2).
            layout: Order of the N tokens.

        Returns:
            Updated tokens, (B, N, C).
        """

        def attend(x: Tensor) -> Tensor:
            return self.attn(self.norm1(x), rotation, layout)

        def transform(x: Tensor) -> Tensor:
            return self.mlp(self.norm2(x))

        drop_prob = self.drop_path if self.training else 0.0
        x = add_branch(x, attend, self.gamma_1, drop_prob)
        return add_branch(x, transform, self.gamma_2, drop_prob)
