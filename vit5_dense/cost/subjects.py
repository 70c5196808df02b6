"""Backbones that are compared, under one interface: pictures in, features out."""

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..backbones import ViT5
from ..backbones.sizes import ARCHS, LONG_NAMES, quarters
from ..errors import UserError
from ..layers.linear import linear
from ..necks import SimplePyramid
from .floor import Floor

# timm's plain models of about the same size.
PEERS = {
    arch: (
        f'timm:vit_{LONG_NAMES[arch]}_patch16_dinov3',
        f'timm:deit3_{LONG_NAMES[arch]}_patch16_224',
        'mmseg:vit',
        'mmseg:beit',
    )
    for arch in ('s', 'b', 'l')
}

# Ours by name: options of the constructor.
OURS: dict[str, dict[str, Any]] = {
    'ours': {},
    'ours windowed': {'window_size': 16},  # four blocks stay global
    'ours drop path': {'drop_path_rate': 0.2},
    'ours recomputed': {'with_cp': True},
    'ours gelu recomputed': {'with_cp': 'gelu'},
}
# The floor of which of ours; products are torch's own unless said.
FLOORS = {'floor': 'ours', 'floor windowed': 'ours windowed', 'floor own products': 'ours'}


@contextlib.contextmanager
def reference_imports(folder: Path) -> Iterator[None]:
    """The reference repository importable, with the timm modules of its time."""
    names = {'timm.models.layers': 'timm.layers', 'timm.models.registry': 'timm.models'}
    modules = {old: importlib.import_module(new) for old, new in names.items()}
    with patch.dict(sys.modules, modules), patch.object(sys, 'path', [str(folder), *sys.path]):
        yield


class Reference(nn.Module):
    """The reference implementation, run as published.

    Args:
        folder: A clone of https://github.com/wangf3014/ViT-5.
        arch: Size.
        side: Pictures are squares of this side: the reference computes positions for no others.

    Raises:
        UserError: If the folder is no such clone, or a package that it needs is missing.
    """

    def __init__(self, folder: Path, arch: str, side: int) -> None:
        super().__init__()
        if not (folder / 'models_vit5.py').is_file():
            raise UserError(
                f'--reference {folder} has no models_vit5.py: clone the ViT-5 repository'
            )
        try:
            with reference_imports(folder):
                module: types.ModuleType = importlib.import_module('models_vit5')
        except ImportError as error:
            raise UserError(
                f'--reference {folder}: {error}; install it (einops, for one)'
            ) from error
        self.model = getattr(module, f'vit5_{LONG_NAMES[arch]}')(img_size=side, num_classes=0)

    def forward(self, x: Tensor) -> Tensor:
        """CLS (B, C) of pictures (B, 3, side, side)."""
        if x.is_cuda:
            return self.model(x)
        with patch.object(Tensor, 'cuda', lambda tensor: tensor):  # it makes positions on a GPU
            return self.model(x)


def from_timm(name: str) -> nn.Module:
    """A timm model without classifier, for pictures of any size."""
    import timm

    try:
        return timm.create_model(name, num_classes=0, dynamic_img_size=True)
    except RuntimeError as error:
        raise UserError(f'timm:{name}: {error}') from error


def from_mmseg(kind: str, arch: str, side: int) -> nn.Module:
    """mmsegmentation's own ViT or BEiT in a size of ours."""
    backbones = importlib.import_module('mmseg.models.backbones')
    sizes = ARCHS[arch]
    options: dict[str, Any] = {
        'img_size': (side, side),
        'embed_dims': sizes['embed_dims'],
        'num_layers': sizes['depth'],
        'num_heads': sizes['num_heads'],
        'out_indices': tuple(sizes['depth'] * i // 4 - 1 for i in (1, 2, 3, 4)),
    }
    if kind == 'vit':
        return backbones.VisionTransformer(**options)
    if kind == 'beit':
        return backbones.BEiT(**options, qv_bias=True)
    raise UserError(f'mmseg:{kind} is unknown: mmseg:vit or mmseg:beit')


def from_mmpretrain(name: str, side: int) -> nn.Module:
    """The backbone of a model of mmpretrain's zoo, for pictures of one size."""
    try:
        apis = importlib.import_module('mmpretrain.apis')
    except ImportError as error:
        raise UserError(f'mmpretrain:{name}: {error}; install mmpretrain') from error
    try:
        return apis.get_model(name, backbone={'img_size': side}).backbone
    except ValueError as error:
        raise UserError(f'mmpretrain:{name}: {error}') from error


def make_subject(name: str, arch: str, side: int, reference: Path | None) -> nn.Module:
    """A backbone by name.

    Args:
        name: One of ``OURS`` or ``FLOORS``, 'ours pyramid' (the backbone and its neck),
            'reference', 'timm:NAME', 'mmseg:vit', 'mmseg:beit', 'mmpretrain:NAME'.
        arch: Size of ours, of the reference and of mmseg's.
        side: Side of the pictures, for those that have to be told.
        reference: Clone of the reference repository.

    Raises:
        UserError: If the name is unknown or what it needs is missing.
    """
    if name in OURS:
        options = dict(OURS[name])
        if 'window_size' in options:
            options['global_attn_indexes'] = quarters(ARCHS[arch]['depth'])
        return ViT5(arch, **options)
    if name == 'ours pyramid':
        return nn.Sequential(ViT5(arch), SimplePyramid(ARCHS[arch]['embed_dims']))
    if name in FLOORS:
        model = make_subject(FLOORS[name], arch, side, None)
        assert isinstance(model, ViT5)
        step = model.patch_size * (OURS[FLOORS[name]].get('window_size') or 1)
        if side % step:
            raise UserError(
                f'{name!r} counts no padding: --size {side} must be a multiple of {step}'
            )
        return Floor(model, linear if 'own products' in name else F.linear)
    if name == 'reference' and reference:
        return Reference(reference, arch, side)
    if name.startswith('timm:'):
        return from_timm(name.removeprefix('timm:'))
    if name.startswith('mmseg:'):
        return from_mmseg(name.removeprefix('mmseg:'), arch, side)
    if name.startswith('mmpretrain:'):
        return from_mmpretrain(name.removeprefix('mmpretrain:'), side)
    raise UserError(f'{name!r} is no subject: see --help')


def features(output: Any) -> Tensor:
    """One number from whatever a backbone returns, through which all of it gets a gradient."""
    if isinstance(output, Tensor):
        return output.float().mean()
    return torch.stack([features(part) for part in output]).sum()


def make_call(
    model: nn.Module, pictures: Tensor, dtype: torch.dtype, training: bool, autocast: bool
) -> Callable[[], None]:
    """A forward pass without gradients, or a training step (forward, backward).

    Args:
        model: Changed in place: its mode and, without autocast, its type.
        pictures: (B, 3, H, W), fp32.
        dtype: Of the arithmetic.
        training: Which of the two.
        autocast: Keep fp32 weights and let autocast choose; else the model itself has the type.
    """
    model.train(training)
    if not autocast:
        model.to(dtype)
        pictures = pictures.to(dtype)
    context = torch.autocast(pictures.device.type, dtype, enabled=autocast)

    def infer() -> None:
        with torch.inference_mode(), context:
            model(pictures)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with context:
            loss = features(model(pictures))
        loss.backward()

    return step if training else infer
