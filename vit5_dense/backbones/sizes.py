"""Sizes of ViT-5, and the block numbers that its options name."""

from collections.abc import Sequence
from itertools import pairwise

ARCHS: dict[str, dict[str, int]] = {
    'ti': {'embed_dims': 192, 'depth': 12, 'num_heads': 3},
    's': {'embed_dims': 384, 'depth': 12, 'num_heads': 6},
    'b': {'embed_dims': 768, 'depth': 12, 'num_heads': 12},
    'l': {'embed_dims': 1024, 'depth': 24, 'num_heads': 16},
    'xl': {'embed_dims': 1152, 'depth': 28, 'num_heads': 16},
}

# The names in published files and at timm.
LONG_NAMES = {'ti': 'tiny', 's': 'small', 'b': 'base', 'l': 'large', 'xl': 'xlarge'}


def resolve_arch(arch: str | dict[str, int]) -> dict[str, int]:
    """Width, depth and heads of a named or a described size, checked."""
    if isinstance(arch, str):
        if arch not in ARCHS:
            raise ValueError(
                f'arch {arch!r} is unknown: choose one of {", ".join(ARCHS)} or a dict'
            )
        return ARCHS[arch]
    if set(arch) != set(ARCHS['b']):
        raise ValueError(
            f'arch needs exactly the keys {sorted(ARCHS["b"])}, but has {sorted(arch)}'
        )
    if min(arch.values()) < 1:
        raise ValueError(f'arch {arch} must have sizes of at least 1')
    if arch['embed_dims'] % (4 * arch['num_heads']):
        raise ValueError(
            f'embed_dims {arch["embed_dims"]} over {arch["num_heads"]} heads must give heads of a '
            'multiple of 4 channels, for pairs of rows and columns'
        )
    return dict(arch)


def quarters(depth: int) -> tuple[int, ...]:
    """The last block of each quarter of the depth: 2, 5, 8, 11 of 12."""
    if depth < 4:
        raise ValueError(f'out_indices must be named for a depth of {depth}, which has no quarters')
    return tuple(depth * quarter // 4 - 1 for quarter in (1, 2, 3, 4))


def resolve_indices(name: str, indices: Sequence[int], depth: int) -> tuple[int, ...]:
    """Block numbers counted from 0, ascending; negative ones count from the end."""
    if isinstance(indices, int) or not all(-depth <= i < depth for i in indices):
        raise ValueError(f'{name} {indices!r} must be block numbers from {-depth} to {depth - 1}')
    resolved = tuple(i % depth for i in indices)
    if any(a >= b for a, b in pairwise(resolved)):
        raise ValueError(f'{name} {tuple(indices)} must be ascending block numbers, each once')
    return resolved


def layer_depth(param_name: str, num_blocks: int, prefix: str = '') -> tuple[int, int]:
    """Depth of a parameter, for layer-wise decay of the learning rate.

    Args:
        param_name: Full name of the parameter.
        num_blocks: Blocks of the backbone.
        prefix: Name of the backbone in the model with a trailing dot, such as 'backbone.'.

    Returns:
        The depth and the number of depths (blocks + 2): 0 for patch embedding, tokens and position
        embedding, i + 1 for block i, the last for all that comes after the blocks.

    Raises:
        ValueError: If the backbone has no such parameter.
    """
    num_depths = num_blocks + 2
    if not param_name.startswith(prefix):
        return num_depths - 1, num_depths
    part = param_name[len(prefix) :].split('.')
    if part[0] == 'blocks' and int(part[1]) < num_blocks:
        return int(part[1]) + 1, num_depths
    if part[0] == 'norm':
        return num_depths - 1, num_depths
    if part[0] in ('patch_embed', 'pos_embed', 'cls_token', 'reg_token'):
        return 0, num_depths
    raise ValueError(f'{param_name} is no parameter of ViT5 under the prefix {prefix!r}')
