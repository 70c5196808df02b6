"""Any published or trained ViT-5 file to the parameters of the backbone, with an account."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .checkpoint_io import CheckpointError, local_file, read_file

if TYPE_CHECKING:
    from .backbones import ViT5

EMA = 'model_ema'
WRAPPERS = (EMA, 'model', 'state_dict', 'module')  # the first one present is opened
PREFIXES = ('module.', 'model.', 'backbone.', '_orig_mod.')
LEFT_OUT = re.compile(r'head\.|norm\.|blocks\.\d+\.attn\.rope(_reg)?\.freqs$')
BLOCK = re.compile(r'blocks\.(\d+)\.')
LORA = re.compile(r'\.base_layer\.|\.lora_|(^|\.)lora_scale$')
MAX_WRAPPERS = 8  # one in the other; a damaged file may hold itself


@dataclass
class Account:
    """What became of every key of a checkpoint.

    Attributes:
        origin: Wrapper that the tensors came from, such as 'model_ema'; '' for a bare file.
        loaded: Keys that reach a parameter.
        left_out: Keys dropped on purpose: classifier, unused norm, RoPE tables, unused blocks.
        resized: Keys resampled on purpose, with both grids.
        missing: Parameters for which the file has nothing.
        unknown: Keys that no ViT-5 has.
        misshapen: Keys whose tensor does not fit, with both shapes or types.
    """

    origin: str = ''
    loaded: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every parameter found its tensor and every tensor its place."""
        return not (self.missing or self.unknown or self.misshapen)

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.missing) + len(self.misshapen)
        lines = [
            f'{len(self.loaded)} of {total} tensors, '
            f'{"EMA" if self.origin == EMA else self.origin or "no wrapper"}'
        ]
        for title in ('missing', 'unknown', 'misshapen'):
            keys = getattr(self, title)
            lines += [f'  {title}: {key}' for key in keys[:5]]
            if len(keys) > 5:
                lines.append(f'  {title}: ... and {len(keys) - 5} more')
        if any(map(LORA.search, self.unknown)):
            lines.append(
                'The file is of a LoRA run: set model.backbone.type=ViT5LoRA, or merge it by '
                'tools/publish_checkpoint.py'
            )
        elif any(map(LORA.search, self.missing)):
            lines.append('The file is of no LoRA run: set model.backbone.type=ViT5')
        return '\n'.join(lines)


def unwrap(content: Mapping[str, Any], ema: bool = True) -> tuple[dict[str, Tensor], str]:
    """Open wrappers such as ``model_ema`` and strip prefixes such as ``module.backbone.``.

    Args:
        content: What a checkpoint holds. Where keys begin with ``backbone.`` the others (neck,
            heads) are dropped.
        ema: Prefer ``model_ema`` to ``model`` where both exist, as the official fine-tuning recipes
            do.

    Returns:
        Plain names to tensors, and the wrapper they came from.
    """
    origin = ''
    wrappers = WRAPPERS if ema else WRAPPERS[1:]
    for _ in range(MAX_WRAPPERS):
        wrapper = next((w for w in wrappers if isinstance(content.get(w), Mapping)), '')
        if not wrapper:
            break
        content, origin = content[wrapper], origin or wrapper
    state = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    while state:
        prefix = next((p for p in PREFIXES if any(key.startswith(p) for key in state)), '')
        if not prefix or (prefix != 'backbone.' and not all(k.startswith(prefix) for k in state)):
            break
        state = {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
    return state, origin


def mismatch(value: Tensor, wanted: Tensor) -> str | None:
    """Why a tensor cannot be copied into another without loss or guesses; both kinds or shapes."""
    empty = value.is_meta and not wanted.is_meta
    plain = value.layout is torch.strided and not (value.is_quantized or empty)
    if not plain or value.is_floating_point() != wanted.is_floating_point():
        kind = str(value.dtype) if plain else f'no plain tensor ({value.dtype}, {value.layout})'
        return f'{kind}, wanted {wanted.dtype}'
    if value.shape != wanted.shape:
        return f'{tuple(value.shape)}, wanted {tuple(wanted.shape)}'
    return None


def compare(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], origin: str) -> Account:
    """Account of a state dict against the one wanted; keys not wanted are unknown."""
    account = Account(origin, missing=[key for key in wanted if key not in state])
    for key, value in state.items():
        if key not in wanted:
            account.unknown.append(key)
        elif reason := mismatch(value, wanted[key]):
            account.misshapen.append(f'{key} is {reason}')
        else:
            account.loaded.append(key)
    return account


def convert(
    content: Mapping[str, Any], wanted: Mapping[str, Tensor], ema: bool = True
) -> tuple[dict[str, Tensor], Account]:
    """Turn any known layout of a ViT-5 checkpoint into the backbone's own.

    Args:
        content: What the file holds.
        wanted: State dict of the backbone; only its keys and shapes are used.
        ema: See ``unwrap``.

    Returns:
        The tensors that fit, and the account of all keys.
    """
    state, origin = unwrap(content, ema)
    account = compare(state, wanted, origin)
    depth = 1 + max((int(m[1]) for key in wanted if (m := BLOCK.match(key))), default=-1)
    for key in account.unknown[:]:
        block = BLOCK.match(key)
        if LEFT_OUT.match(key) or (block and int(block[1]) >= depth):
            account.unknown.remove(key)
            account.left_out.append(key)
    return {key: state[key] for key in account.loaded}, account


def square_side(pos_embed: Tensor, path: Path) -> int:
    """Side of the square grid that a position embedding (1, rows, C) stands for.

    Raises:
        CheckpointError: If its rows form no square, as with a row for CLS.
    """
    rows = pos_embed.shape[1] if pos_embed.ndim == 3 else 0
    side = math.isqrt(rows)
    if side == 0 or side * side != rows:
        raise CheckpointError(
            f'{path}: pos_embed is {tuple(pos_embed.shape)}, whose rows form no square grid. ViT-5 '
            'has no row for CLS; this is another model'
        )
    return side


def check_grid(pos_embed: Tensor | None, backbone: 'ViT5', path: Path) -> None:
    """Refuse a position embedding of another grid than the backbone's, with the size to set."""
    if pos_embed is None:
        return
    side = square_side(pos_embed, path)
    if (side, side) != backbone.pretrain_grid:
        raise CheckpointError(
            f'{path} was trained on a grid of {side} x {side} patches, the backbone is set to '
            f'{backbone.pretrain_grid[0]} x {backbone.pretrain_grid[1]}: '
            f'set pretrain_img_size={side * backbone.patch_size}'
        )


def load_pretrained(backbone: 'ViT5', checkpoint: str) -> str:
    """Load a ViT-5 file into a backbone: every parameter, or an error.

    Args:
        backbone: The backbone to fill.
        checkpoint: A local file, or a URL that is downloaded once into torch hub's folder.

    Returns:
        One line that says what was loaded.

    Raises:
        CheckpointError: If anything is missing, unknown or of another shape; with the account.
    """
    path = local_file(checkpoint)
    content = read_file(path)
    wanted = backbone.state_dict()
    fitting, account = convert(content, wanted)
    check_grid(unwrap(content)[0].get('pos_embed'), backbone, path)
    if not account.complete:
        raise CheckpointError(f'{path} does not fit this ViT-5: {account}')
    backbone.load_state_dict(fitting, strict=True)
    return f'{backbone.arch_name}: {account}, grid {backbone.pretrain_grid[0]}, from {path}'


def trained_state(content: Mapping[str, Any], path: Path | str) -> dict[str, Tensor]:
    """Names and tensors in a checkpoint of a training run, or in a bare state dict.

    Args:
        content: What the file holds.
        path: For the message.

    Raises:
        CheckpointError: If its state_dict is something else.
    """
    state = content.get('state_dict', content)
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f'{path} has a state_dict that is a {type(state).__name__}, not names and tensors: it '
            'is no checkpoint of a training run'
        )
    return {str(key): value for key, value in state.items() if isinstance(value, Tensor)}


def load_trained(model: nn.Module, path: Path) -> dict[str, Any]:
    """Load a trained segmentor or detector for testing: every tensor, or an error.

    Args:
        model: The model, without or within a wrapper for test-time augmentation or DDP.
        path: Checkpoint of a training run, or a bare state dict.

    Returns:
        The ``meta`` of the checkpoint, such as class names; empty if there is none.

    Raises:
        CheckpointError: If a tensor is missing, unknown or of another shape; with the account.
    """
    content = read_file(path)
    while isinstance(inner := getattr(model, 'module', None), nn.Module):
        model = inner
    tensors = trained_state(content, path)
    account = compare(tensors, model.state_dict(), 'state_dict' if 'state_dict' in content else '')
    if not account.complete:
        raise CheckpointError(
            f'{path} is not of the model in the config (other size, classes or heads?): {account}'
        )
    model.load_state_dict(tensors, strict=True)
    meta = content.get('meta')
    return dict(meta) if isinstance(meta, Mapping) else {}
