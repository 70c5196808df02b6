"""A slow ViT-5 that spells out every step, against which the package is tested.

Nothing here is shared with the package: tokens are turned one by one with explicit rotation
matrices, softmax is an exponential over a sum, windows are an N x N table of who sees whom, and
all of it runs in float64. Weights come as a mapping of names to tensors and stay differentiable.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Grid = tuple[int, int]
Weights = Mapping[str, Tensor]


def pair_angles(head_dim: int, row: float, col: float, theta: float) -> list[float]:
    """Angle of every interleaved pair: the first half of the pairs by row, the second by column."""
    half = head_dim // 2
    frequencies = [theta ** (-exponent / half) for exponent in range(0, half, 2)]
    return [row * f for f in frequencies] + [col * f for f in frequencies]


def rotation_matrix(angles: Sequence[float]) -> Tensor:
    """Block-diagonal (D, D) matrix that turns the pairs (x0, x1), (x2, x3), ... by `angles`."""
    matrix = torch.zeros(2 * len(angles), 2 * len(angles), dtype=torch.float64)
    for i, angle in enumerate(angles):
        cos, sin = math.cos(angle), math.sin(angle)
        matrix[2 * i, 2 * i], matrix[2 * i, 2 * i + 1] = cos, -sin
        matrix[2 * i + 1, 2 * i], matrix[2 * i + 1, 2 * i + 1] = sin, cos
    return matrix


def token_angles(
    head_dim: int, grid: Grid, reference: Grid | None, registers: int
) -> list[list[float]]:
    """Pair angles of all tokens, CLS first, registers last; `reference` None: integer positions."""
    h, w = grid
    step_row, step_col = (reference[0] / h, reference[1] / w) if reference else (1.0, 1.0)
    tokens = [pair_angles(head_dim, 0, 0, 10000.0)]
    for i in range(h):
        for j in range(w):
            tokens.append(pair_angles(head_dim, i * step_row, j * step_col, 10000.0))
    for r in range(registers):
        tokens.append(pair_angles(head_dim, r // 2, r % 2, 100.0))
    return tokens


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """X over the root of its mean square, times the weight."""
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def visibility(grid: Grid, registers: int, window: int | None) -> Tensor:
    """(N, N) table, True where the token of the row may look at the token of the column."""
    h, w = grid
    special = -1
    if window is None:
        window = max(h, w)
    homes = [(i // window) * w + j // window for i in range(h) for j in range(w)]
    home = torch.tensor([special, *homes, *[special] * registers])
    return (home[:, None] == home) | (home[:, None] == special) | (home == special)


def attention(
    x: Tensor, weights: Weights, prefix: str, num_heads: int, turns: Tensor, seen: Tensor
) -> Tensor:
    """Self-attention of (B, N, C) tokens, head by head, with (N, D, D) rotations."""
    dim = x.shape[-1]
    d = dim // num_heads
    qkv = x @ weights[prefix + 'qkv.weight'].double().T
    heads = []
    for head in range(num_heads):
        q, k, v = (
            qkv[..., part * dim + head * d : part * dim + (head + 1) * d] for part in range(3)
        )
        q = rms_norm(q, weights[prefix + 'q_norm.weight'].double())
        k = rms_norm(k, weights[prefix + 'k_norm.weight'].double())
        q = torch.einsum('nij,bnj->bni', turns, q)
        k = torch.einsum('nij,bnj->bni', turns, k)
        scores = (q @ k.transpose(1, 2) / math.sqrt(d)).exp() * seen.double()
        heads.append(scores @ v / scores.sum(-1, keepdim=True))
    out = torch.cat(heads, -1) @ weights[prefix + 'proj.weight'].double().T
    return out + weights[prefix + 'proj.bias'].double()


def mlp(x: Tensor, weights: Weights, prefix: str) -> Tensor:
    """fc1, exact GELU, fc2."""
    x = x @ weights[prefix + 'fc1.weight'].double().T + weights[prefix + 'fc1.bias'].double()
    x = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    return x @ weights[prefix + 'fc2.weight'].double().T + weights[prefix + 'fc2.bias'].double()


def block(
    x: Tensor, weights: Weights, prefix: str, num_heads: int, turns: Tensor, seen: Tensor
) -> Tensor:
    """Pre-norm block with LayerScale."""
    get = {
        name: weights[prefix + name].double()
        for name in ('gamma_1', 'gamma_2', 'norm1.weight', 'norm2.weight')
    }
    inner = rms_norm(x, get['norm1.weight'])
    x = x + get['gamma_1'] * attention(inner, weights, prefix + 'attn.', num_heads, turns, seen)
    return x + get['gamma_2'] * mlp(rms_norm(x, get['norm2.weight']), weights, prefix + 'mlp.')


def cubic_matrix(source: int, target: int) -> Tensor:
    """(target, source) weights of bicubic resampling (a = -0.75) of one axis, edges repeated."""
    a = -0.75
    matrix = torch.zeros(target, source, dtype=torch.float64)
    for t in range(target):
        where = (t + 0.5) * source / target - 0.5
        for tap in range(math.floor(where) - 1, math.floor(where) + 3):
            u = abs(where - tap)
            near = (a + 2) * u**3 - (a + 3) * u**2 + 1
            far = a * u**3 - 5 * a * u**2 + 8 * a * u - 4 * a
            matrix[t, min(max(tap, 0), source - 1)] += near if u <= 1 else far
    return matrix


def resample(pos_embed: Tensor, source: Grid, target: Grid) -> Tensor:
    """(1, gh*gw, C) position embedding on another grid, rows first, in float64."""
    table = pos_embed.double().reshape(*source, -1)
    rows, cols = cubic_matrix(source[0], target[0]), cubic_matrix(source[1], target[1])
    return torch.einsum('hy,wx,yxc->hwc', rows, cols, table).reshape(1, target[0] * target[1], -1)


def embed(image: Tensor, weights: Weights, source: Grid, patch: int = 16) -> tuple[Tensor, Grid]:
    """All tokens before the first block, with the grid; the picture is padded with zeros."""
    b, c, height, width = image.shape
    grid = (math.ceil(height / patch), math.ceil(width / patch))
    padded = torch.zeros(b, c, grid[0] * patch, grid[1] * patch, dtype=torch.float64)
    padded[:, :, :height, :width] = image
    kernel = weights['patch_embed.proj.weight'].double()
    patches = []
    for i in range(grid[0]):
        for j in range(grid[1]):
            cut = padded[:, :, i * patch : (i + 1) * patch, j * patch : (j + 1) * patch]
            patches.append(torch.einsum('bcyx,ocyx->bo', cut, kernel))
    x = torch.stack(patches, 1) + weights['patch_embed.proj.bias'].double()
    x = x + resample(weights['pos_embed'], source, grid)
    specials = [weights[name].double().expand(b, -1, -1) for name in ('cls_token', 'reg_token')]
    return torch.cat([specials[0], x, specials[1]], 1), grid


def vit5_tokens(
    weights: Weights,
    image: Tensor,
    num_heads: int,
    source: Grid,
    rope_scaling: str = 'interpolate',
    window_size: int | None = None,
    global_attn_indexes: Sequence[int] = (),
) -> list[Tensor]:
    """All tokens in reference order after the embedding and after every block of `weights`."""
    x, grid = embed(image, weights, source)
    registers = weights['reg_token'].shape[1]
    head_dim = x.shape[-1] // num_heads
    reference = {'interpolate': source, 'extrapolate': None}[rope_scaling]
    turns = torch.stack(
        [rotation_matrix(angles) for angles in token_angles(head_dim, grid, reference, registers)]
    )
    out = [x]
    depth = 1 + max(int(name.split('.')[1]) for name in weights if name.startswith('blocks.'))
    for index in range(depth):
        window = None if index in global_attn_indexes else window_size
        x = block(
            x, weights, f'blocks.{index}.', num_heads, turns, visibility(grid, registers, window)
        )
        out.append(x)
    return out
