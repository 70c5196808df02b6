"""Self-attention with normalised, rotated queries and keys; over all tokens or in windows."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .linear import Linear
from .modes import is_eager, is_exported
from .norm import RMSNorm, rms_norm
from .processor import AMD, AVX512_BF16
from .rope import rotate
from .tokens import TokenLayout
from .window import merge_windows, num_windows, split_windows, window_padding_mask

# Without AMX torch's attention kernel multiplies bf16 no faster than fp32; products are faster.
SLOW_ATTENTION = AMD and AVX512_BF16
QUERIES, WEIGHTS = 256, 2**22  # in a portion: both stay in the processor's cache


def attend_in_portions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``F.scaled_dot_product_attention`` without gradients by products and a softmax.

    Scores are rounded to the type of the values, as in the reference under autocast.

    Args:
        q: Queries, (B, heads, N, D).
        k: Keys, (B, heads, M, D).
        v: Values, (B, heads, M, D).

    Returns:
        Attended values, (B, heads, N, D).
    """
    queries = (q * q.shape[3] ** -0.5).flatten(0, 1)  # (B*heads, N, D)
    keys, values = k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1)
    out = torch.empty_like(queries)
    heads = max(1, WEIGHTS // (QUERIES * k.shape[2]))
    for portions in zip(*(x.split(heads) for x in (queries, keys, values, out)), strict=True):
        some, these_keys, these_values, target = portions
        for rows, place in zip(some.split(QUERIES, 1), target.split(QUERIES, 1), strict=True):
            place.copy_((rows @ these_keys).softmax(2) @ these_values)
    return out.view(q.shape)


if hasattr(torch.library, 'custom_op'):  # since torch 2.4

    @torch.library.custom_op('vit5_dense::attend_in_portions', mutates_args=())
    def opaque_attend_in_portions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """``attend_in_portions`` as one operator of a compiled graph for any size."""
        return attend_in_portions(q, k, v)

    @opaque_attend_in_portions.register_fake
    def _(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.new_empty(q.shape)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``F.scaled_dot_product_attention``, or what is faster on the processor."""
    half = q.device.type == 'cpu' and q.dtype == torch.bfloat16
    if not (SLOW_ATTENTION and half) or torch.is_grad_enabled() or is_exported():
        return F.scaled_dot_product_attention(q, k, v)
    return attend_in_portions(q, k, v) if is_eager() else opaque_attend_in_portions(q, k, v)


def window_attention(q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, size: int) -> Tensor:
    """Attention in which a patch sees its own window and all special tokens.

    The special tokens see everything. The cost grows linearly with the number of patches. One
    window over the whole grid gives global attention.

    Args:
        q: Queries, (B, heads, N, D).
        k: Keys, (B, heads, N, D).
        v: Values, (B, heads, N, D).
        layout: Order of the N tokens.
        size: Side of a window in patches.

    Returns:
        Attended values, (B, heads, N, D).
    """
    rows, columns = num_windows(layout.grid, size)
    count = rows * columns

    def windows_and_specials(x: Tensor) -> Tensor:
        windows = split_windows(layout.patches(x, 2), layout.grid, size)  # (B*W, heads, s*s, D)
        specials = layout.specials(x, 2)  # (B, heads, 1+R, D)
        specials = specials[:, None].expand(-1, count, -1, -1, -1).flatten(0, 1)
        return torch.cat((windows, specials), dim=2)  # (B*W, heads, s*s+1+R, D)

    mask = window_padding_mask(layout.grid, size, q.device)  # (W, s*s)
    if mask is not None:
        mask = F.pad(mask, (0, 1 + layout.num_registers), value=True)  # (W, s*s+1+R)
        mask = mask.repeat(q.shape[0], 1)[:, None, None]  # (B*W, 1, 1, s*s+1+R)
    queries = split_windows(layout.patches(q, 2), layout.grid, size)
    keys, values = windows_and_specials(k), windows_and_specials(v)
    if mask is None:
        patches = attend(queries, keys, values)
    else:
        patches = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    specials = attend(layout.specials(q, 2), k, v)
    return layout.join(merge_windows(patches, layout.grid, size), specials, 2)


def visible_tokens(
    layout: TokenLayout, size: int | None, token: int, device: torch.device | str | None = None
) -> Tensor:
    """Which tokens one token attends to; see ``window_attention``.

    Args:
        layout: Order of the N tokens.
        size: Side of a window in patches; None where every token sees every token.
        token: Its number in the sequence.
        device: Where the answer is needed.

    Returns:
        True for those that it sees, (N,).
    """
    mark = torch.zeros(sum(layout.parts), device=device)
    mark[token] = 1
    patches = layout.patches(mark, 0)  # (h*w,)
    if size is None or not patches.any():
        return torch.ones_like(mark, dtype=torch.bool)
    windows = split_windows(patches.view(1, 1, -1, 1), layout.grid, size)  # (W, 1, s*s, 1)
    own = windows.amax(2, keepdim=True).expand_as(windows)  # 1 all over the window of the token
    patches = merge_windows(own, layout.grid, size).flatten()  # (h*w,)
    specials = torch.ones_like(layout.specials(mark, 0))  # (1+R,)
    return layout.join(patches, specials, 0).bool()


def attention_weights(q: Tensor, k: Tensor, visible: Tensor, token: int) -> Tensor:
    """The row of softmax weights that attention gives to the values, for one token.

    Args:
        q: Queries, (B, heads, N, D).
        k: Keys, (B, heads, N, D).
        visible: Which tokens it sees, (N,); see ``visible_tokens``.
        token: Its number in the sequence.

    Returns:
        Weights of all tokens, (B, heads, N), fp32; they sum to 1.
    """
    query = q[:, :, token].float().unsqueeze(3)  # (B, heads, D, 1)
    scores = (k.float() @ query).squeeze(3) * q.shape[-1] ** -0.5  # (B, heads, N)
    return scores.masked_fill(~visible, -torch.inf).softmax(2)


class Attention(nn.Module):
    """Multi-head self-attention of ViT-5: QK-norm, then RoPE, then softmax attention.

    Args:
        dim: Width C, a multiple of ``num_heads``.
        num_heads: Number of heads.
        window_size: Side in patches of the windows that patches are confined to; None lets every
            token see every token.
    """

    def __init__(self, dim: int, num_heads: int, window_size: int | None = None) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.window_size = window_size
        self.qkv = Linear(dim, 3 * dim, bias=False)
        self.q_norm = RMSNorm(dim // num_heads)
        self.k_norm = RMSNorm(dim // num_heads)
        self.proj = Linear(dim, dim)

    def queries_keys_values(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What attention is computed from, after QK-norm and RoPE.

        Args:
            x: All tokens, (B, N, C).
            rotation: Cosine and sine of all tokens, (N, D / 2, 2).

        Returns:
            Queries, keys and values, (B, heads, N, D) each.
        """
        qkv = self.qkv(x).unflatten(2, (3, self.num_heads, -1))  # (B, N, 3, heads, D)
        qk, v = qkv.split((2, 1), dim=2)
        weights = torch.stack((self.q_norm.weight, self.k_norm.weight))[:, None]  # (2, 1, D)
        qk = rms_norm(qk.float(), weights.float(), self.q_norm.eps)
        qk = rotate(qk, rotation[:, None, None]).to(v.dtype)  # (B, N, 2, heads, D)
        q, k = qk.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, N, D) each
        v = v.squeeze(2).transpose(1, 2)  # (B, heads, N, D)
        return q, k, v

    def forward(self, x: Tensor, rotation: Tensor, layout: TokenLayout) -> Tensor:
        """Mix the tokens of each picture.

        Args:
            x: All tokens, (B, N, C).
            rotation: Cosine and sine of all tokens, (N, D / 2, 2).
            layout: Order of the N tokens.

        Returns:
            Mixed tokens, (B, N, C).
        """
        q, k, v = self.queries_keys_values(x, rotation)
        if self.window_size is None:
            x = attend(q, k, v)
        else:
            x = window_attention(q, k, v, layout, self.window_size)
        return self.proj(x.transpose(1, 2).flatten(2))  # (B, N, C)
