"""Layer-wise decay: the exact rate and decay of every parameter."""

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper, build_optim_wrapper
from torch import Tensor, nn

from vit5_dense import ViT5

LR, DECAY = 0.1, 0.05
TOKENS = ('cls_token', 'reg_token', 'pos_embed')
Make = Callable[..., ViT5]


class Segmentor(nn.Module):
    """A backbone and a head, named as in mmseg."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.decode_head = nn.Sequential(nn.Conv2d(32, 8, 1), nn.BatchNorm2d(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.decode_head(self.backbone(x)[-1])


class Wrapper(nn.Module):
    """Stands for DistributedDataParallel."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def wrap(model: nn.Module, **paramwise: Any) -> OptimWrapper:
    return build_optim_wrapper(
        model,
        {
            'type': 'OptimWrapper',
            'constructor': 'ViT5LayerDecayOptimWrapperConstructor',
            'optimizer': {'type': 'AdamW', 'lr': LR, 'weight_decay': DECAY},
            'paramwise_cfg': paramwise,
        },
    )


def settings(model: nn.Module, wrapper: OptimWrapper) -> dict[str, tuple[float, float]]:
    """Rate and decay of each optimised parameter, none of them twice."""
    names = {id(param): name for name, param in model.named_parameters()}
    found: dict[str, tuple[float, float]] = {}
    for group in wrapper.optimizer.param_groups:
        for param in group['params']:
            assert names[id(param)] not in found
            found[names[id(param)]] = (group['lr'], group['weight_decay'])
    return found


def expected(model: nn.Module, rate: float, depth: int) -> dict[str, tuple[float, float]]:
    """The rule, name by name, for `depth` built blocks."""
    result = {}
    for name, param in model.named_parameters():
        lr = LR
        if name.startswith('backbone.blocks.'):
            lr = LR * rate ** (depth - int(name.split('.')[2]))
        elif name.startswith('backbone.') and not name.startswith('backbone.norm.'):
            lr = LR * rate ** (depth + 1)
        plain = param.ndim <= 1 or name.split('.')[-1] in TOKENS
        result[name] = (lr, 0.0 if plain else DECAY)
    return result


def check(found: dict[str, tuple[float, float]], wanted: dict[str, tuple[float, float]]) -> None:
    assert set(found) == set(wanted)
    for name, pair in wanted.items():
        assert found[name] == pytest.approx(pair, rel=1e-6), name


def test_literal_rates_at_decay_one_half_and_three_blocks(make_vit5: Make) -> None:
    model = Segmentor(make_vit5(out_norm=True))
    found = settings(model, wrap(model, layer_decay_rate=0.5))
    literal = {
        'backbone.pos_embed': (0.00625, 0.0),
        'backbone.cls_token': (0.00625, 0.0),
        'backbone.reg_token': (0.00625, 0.0),
        'backbone.patch_embed.proj.weight': (0.00625, 0.05),
        'backbone.patch_embed.proj.bias': (0.00625, 0.0),
        'backbone.blocks.0.attn.qkv.weight': (0.0125, 0.05),
        'backbone.blocks.0.attn.q_norm.weight': (0.0125, 0.0),
        'backbone.blocks.0.gamma_1': (0.0125, 0.0),
        'backbone.blocks.1.mlp.fc1.weight': (0.025, 0.05),
        'backbone.blocks.1.norm2.weight': (0.025, 0.0),
        'backbone.blocks.2.mlp.fc2.bias': (0.05, 0.0),
        'backbone.blocks.2.attn.proj.weight': (0.05, 0.05),
        'backbone.norm.weight': (0.1, 0.0),
        'decode_head.0.weight': (0.1, 0.05),
        'decode_head.0.bias': (0.1, 0.0),
        'decode_head.1.weight': (0.1, 0.0),
    }
    check({name: found[name] for name in literal}, literal)


@pytest.mark.parametrize('rate', [0.5, 0.9, 1.0])
@pytest.mark.parametrize('taps', [(0, 1, 2), (0, 1)])
def test_every_parameter_once_with_its_rate(
    make_vit5: Make, taps: tuple[int, ...], rate: float
) -> None:
    """Depths count the blocks that are built."""
    model = Segmentor(make_vit5(out_indices=taps, out_norm=True))
    check(settings(model, wrap(model, layer_decay_rate=rate)), expected(model, rate, len(taps)))


def test_without_a_rate_all_are_equal(make_vit5: Make) -> None:
    model = Segmentor(make_vit5())
    check(settings(model, wrap(model)), expected(model, 1.0, 3))


def test_a_model_inside_a_wrapper(make_vit5: Make) -> None:
    model = Segmentor(make_vit5())
    found = settings(model, wrap(Wrapper(model), layer_decay_rate=0.5))
    check(found, expected(model, 0.5, 3))


@pytest.mark.parametrize('stages', [0, 2])
def test_frozen_parameters_are_left_out(make_vit5: Make, stages: int) -> None:
    model = Segmentor(make_vit5(frozen_stages=stages))
    wanted = {
        name: pair
        for name, pair in expected(model, 0.5, 3).items()
        if model.get_parameter(name).requires_grad
    }
    assert len(wanted) < len(list(model.parameters()))
    check(settings(model, wrap(model, layer_decay_rate=0.5)), wanted)


def test_frozen_parameters_are_bit_identical_after_three_steps(make_vit5: Make) -> None:
    model = Segmentor(make_vit5(frozen_stages=1, drop_path_rate=0.3)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wrapper = wrap(model, layer_decay_rate=0.5)
    for _ in range(3):
        wrapper.update_params(model(torch.randn(2, 3, 64, 64)).square().mean())
    for name, param in model.named_parameters():
        frozen = name.startswith('backbone.blocks.0.') or (
            name.startswith('backbone.') and 'blocks' not in name
        )
        assert torch.equal(param, before[name]) is frozen, name


def test_a_custom_key_multiplies_and_cancels_nothing(make_vit5: Make) -> None:
    model = Segmentor(make_vit5(out_norm=True))
    found = settings(
        model,
        wrap(
            model,
            layer_decay_rate=0.5,
            custom_keys={
                'attn': {'lr_mult': 0.1, 'decay_mult': 2.0},
                'decode_head': {'lr_mult': 10},
            },
        ),
    )
    wanted = expected(model, 0.5, 3)
    for name, (lr, decay) in wanted.items():
        if '.attn.' in name:
            wanted[name] = (lr * 0.1, decay * 2)
        elif name.startswith('decode_head'):
            wanted[name] = (lr * 10, decay)
    check(found, wanted)


def test_two_custom_keys_on_one_name_multiply_each_other(make_vit5: Make) -> None:
    model = Segmentor(make_vit5())
    found = settings(
        model,
        wrap(
            model,
            layer_decay_rate=0.5,
            custom_keys={
                'backbone': {'lr_mult': 0.5},
                'backbone.blocks.2': {'lr_mult': 0.2},
                'norm': {'decay_mult': 0.0},
            },
        ),
    )
    wanted = expected(model, 0.5, 3)
    for name, (lr, decay) in wanted.items():
        if name.startswith('backbone.blocks.2.'):
            wanted[name] = (lr * 0.1, decay)
        elif name.startswith('backbone.'):
            wanted[name] = (lr * 0.5, decay)
    check(found, wanted)


def test_an_unknown_parameter_of_the_backbone_raises(make_vit5: Make) -> None:
    model = Segmentor(make_vit5())
    model.backbone.adapter = nn.Linear(32, 32)
    with pytest.raises(ValueError, match='adapter'):
        wrap(model, layer_decay_rate=0.5)


def test_a_backbone_that_cannot_tell_depths_raises() -> None:
    with pytest.raises(ValueError, match='get_layer_depth'):
        wrap(Segmentor(nn.Sequential(nn.Conv2d(3, 32, 1))), layer_decay_rate=0.5)


@pytest.mark.parametrize(
    ('paramwise', 'named'),
    [
        ({'layer_decay': 0.5}, 'layer_decay'),
        ({'layer_decay_rate': 0.5, 'num_layers': 12}, 'num_layers'),
        ({'custom_keys': {'attn': {'lr': 0.1}}}, 'lr'),
        ({'layer_decay_rate': 0.0}, '0'),
        ({'layer_decay_rate': 1.5}, r'1\.5'),
        ({'custom_keys': {'atn': {'lr_mult': 0.1}}}, 'atn'),
    ],
    ids=str,
)
def test_unknown_entries_raise(make_vit5: Make, paramwise: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        wrap(Segmentor(make_vit5()), **paramwise)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = MMLogger.get_current_instance()
    handler = Keep()
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def test_a_table_of_groups_is_logged(make_vit5: Make, logged: list[str]) -> None:
    """Each pair of rate and decay has a line that holds both numbers."""
    model = Segmentor(make_vit5(out_norm=True))
    pairs = set(settings(model, wrap(model, layer_decay_rate=0.5)).values())
    assert len(pairs) == 10
    rows = [
        {float(number) for number in re.findall(r'(?<!\S)\d[\d.e-]*(?!\S)', row)}
        for row in '\n'.join(logged).splitlines()
    ]
    for pair in pairs:
        rounded = {float(f'{number:.3g}') for number in pair}
        assert any(rounded <= row for row in rows), pair
