"""A ViT-5 file of any layout, turned into a file that needs no unwrapping."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .backbones import ViT5
from .checkpoint import BLOCK, EMA, Account, convert, square_side, unwrap
from .checkpoint_io import CheckpointError, read_file
from .layers import resample_pos_embed

DTYPES = {'fp32': torch.float32, 'fp16': torch.float16, 'bf16': torch.bfloat16}


def sizes_of(state: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """Arguments of the ``ViT5`` that a state dict belongs to, from the shapes in it.

    Raises:
        CheckpointError: If it is of no ViT-5.
    """
    try:
        patch, grid = state['patch_embed.proj.weight'], state['pos_embed']
        head_dim = len(state['blocks.0.attn.q_norm.weight'])
        registers = state['reg_token'].shape[1]
    except KeyError as error:
        raise CheckpointError(f'{path} is no ViT-5: it has no {error.args[0]}') from error
    except IndexError as error:
        raise CheckpointError(f'{path} is no ViT-5: its reg_token is no (1, R, C)') from error
    blocks = {int(found[1]) for key in state if (found := BLOCK.match(key))}
    return {
        'arch': {
            'embed_dims': patch.shape[0],
            'depth': 1 + max(blocks),
            'num_heads': patch.shape[0] // head_dim,
        },
        'pretrain_img_size': square_side(grid, path) * patch.shape[-1],
        'patch_size': patch.shape[-1],
        'in_channels': patch.shape[1],
        'num_registers': registers,
    }


def convert_file(
    path: Path, ema: bool = True, to_img_size: int | None = None, dtype: str | None = None
) -> tuple[dict[str, Tensor], Account, dict[str, str]]:
    """Read a ViT-5 file and keep what a backbone or a classifier loads.

    Args:
        path: The file, in any layout that ``checkpoint.unwrap`` knows.
        ema: Prefer ``model_ema`` to ``model``.
        to_img_size: Resample the position embedding to the grid of this picture size, in pixels.
        dtype: 'fp32', 'fp16' or 'bf16' for all tensors; None keeps each as it is.

    Returns:
        Reference names to tensors, the account, and facts to store beside them.

    Raises:
        CheckpointError: If the file is no whole ViT-5.
    """
    content = read_file(path)
    state, origin = unwrap(content, ema)
    sizes = sizes_of(state, path)
    try:
        with torch.device('meta'):
            wanted = ViT5(**sizes, out_indices=(-1,), out_norm='norm.weight' in state).state_dict()
    except ValueError as error:
        raise CheckpointError(f'{path} is no ViT-5: {error}') from error
    wanted |= {key: state[key] for key in ('head.weight', 'head.bias') if key in state}
    fitting, account = convert(content, wanted, ema)
    if not account.complete:
        raise CheckpointError(f'{path} is no whole ViT-5: {account}')
    meta = {
        'source': path.name,
        'weights': 'EMA' if origin == EMA else origin or 'bare',
        'img_size': str(sizes['pretrain_img_size']),
    }
    if to_img_size is not None and to_img_size != sizes['pretrain_img_size']:
        if to_img_size < 1 or to_img_size % sizes['patch_size']:
            raise CheckpointError(
                f'--to-img-size {to_img_size} is no multiple of the patch size '
                f'{sizes["patch_size"]}'
            )
        old = sizes['pretrain_img_size'] // sizes['patch_size']
        new = to_img_size // sizes['patch_size']
        fitting['pos_embed'] = resample_pos_embed(fitting['pos_embed'], (old, old), (new, new))
        account.loaded.remove('pos_embed')
        account.resized.append(f'pos_embed: grid {old} to {new}')
        meta |= {'img_size': str(to_img_size), 'resampled_from': meta['img_size']}
    if dtype:
        fitting = {key: value.to(DTYPES[dtype]) for key, value in fitting.items()}
    return fitting, account, meta
