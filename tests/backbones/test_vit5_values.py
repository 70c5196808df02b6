"""The backbone: arguments, bad values, depths of parameters."""

import inspect
import re
from typing import Any

import pytest
import torch

from tiny import STEM, TINY, Make
from vit5_dense import ViT5


def names_value(message: str, value: Any) -> bool:
    """Whether a message holds a value by itself, not as a part of another number or word."""
    return re.search(rf'(?<![\w.-]){re.escape(str(value))}(?![\w.]*\w)', message) is not None


def test_defaults_are_those_promised() -> None:
    defaults = {
        name: param.default
        for name, param in inspect.signature(ViT5.__init__).parameters.items()
        if name != 'self'
    }
    assert defaults == {
        'arch': 'b',
        'pretrain_img_size': 224,
        'patch_size': 16,
        'in_channels': 3,
        'num_registers': 4,
        'out_indices': None,
        'drop_path_rate': 0.0,
        'layer_scale_init': 1e-4,
        'rope_scaling': 'interpolate',
        'window_size': None,
        'global_attn_indexes': (),
        'out_norm': False,
        'frozen_stages': -1,
        'with_cp': False,
        'compiled': False,
        'init_cfg': None,
    }


@pytest.mark.parametrize('name', ['img_size', 'drop_path', 'out_indicies', 'pretrained', 'kwargs'])
def test_a_misspelt_argument_raises(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        ViT5(arch=TINY, out_indices=(2,), **{name: None})


def test_pretrained_beside_init_cfg_raises() -> None:
    """init_cfg is the single way to load weights."""
    with pytest.raises(TypeError, match='pretrained'):
        ViT5(arch=TINY, out_indices=(2,), init_cfg=None, pretrained='somewhere.pth')


def test_without_init_cfg_nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: Any, **__: Any) -> None:
        raise AssertionError('a download was tried')

    monkeypatch.setattr('socket.socket.connect', no_network)
    monkeypatch.setattr('torch.hub.load_state_dict_from_url', no_network)
    model = ViT5(arch=TINY, out_indices=(2,), init_cfg=None)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.init_weights()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    'bad',
    [
        (3,),
        (-4,),
        (0, 17),
        (1, 1),
        (2, -1),
        (2, 0),
        (-1, 0),
        (0, -3),
    ],
)
def test_taps_out_of_range_repeated_or_unsorted(bad: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match='out_indices') as error:
        ViT5(arch=TINY, out_indices=bad)
    assert any(names_value(str(error.value), index) for index in bad)


def test_no_taps() -> None:
    with pytest.raises(ValueError, match='out_indices'):
        ViT5(arch=TINY, out_indices=())


@pytest.mark.parametrize(
    ('name', 'value', 'others'),
    [
        ('pretrain_img_size', 100, {}),
        ('pretrain_img_size', 0, {}),
        ('num_registers', -1, {}),
        ('num_registers', 3, {}),
        ('drop_path_rate', 1.5, {}),
        ('with_cp', 'attention', {}),
        ('drop_path_rate', -0.1, {}),
        ('rope_scaling', 'linear', {}),
        ('window_size', 0, {}),
        ('window_size', -7, {}),
        ('global_attn_indexes', (3,), {'window_size': 4}),
        ('global_attn_indexes', (-4,), {'window_size': 4}),
        ('frozen_stages', 4, {}),
        ('frozen_stages', -2, {}),
    ],
)
def test_a_wrong_value_is_named(name: str, value: Any, others: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=name) as error:
        ViT5(arch=TINY, out_indices=(2,), **{name: value}, **others)
    assert names_value(str(error.value), value[0] if isinstance(value, tuple) else value)


@pytest.mark.parametrize(
    ('arch', 'named'),
    [
        ('huge', 'huge'),
        ({'embed_dims': 32, 'depth': 3}, 'num_heads'),
        ({**TINY, 'heads': 2}, 'heads'),
        ({**TINY, 'num_heads': 5}, '5'),
        ({**TINY, 'num_heads': 0}, '0'),
        ({**TINY, 'embed_dims': 36}, '36'),
        ({**TINY, 'depth': 0}, '0'),
    ],
    ids=str,
)
def test_a_wrong_arch_is_named(arch: Any, named: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the value is looked for below)
        ViT5(arch=arch, out_indices=(2,))
    assert names_value(str(error.value), named)


def test_depth_of_every_parameter(make_vit5: Make) -> None:
    """Two blocks built of three: depths 0 to 3, four in all."""
    model = make_vit5(out_indices=(0, 1), out_norm=True)
    for prefix in ('', 'backbone.'):
        for name, _ in model.named_parameters():
            expected = 0 if name in STEM else 3
            if name.startswith('blocks.'):
                expected = 1 + int(name.split('.')[1])
            assert model.get_layer_depth(prefix + name, prefix) == (expected, 4), name


@pytest.mark.parametrize('name', ['blocks.7.norm1.weight', 'adapter.weight', 'head.weight'])
def test_depth_of_an_unknown_parameter(make_vit5: Make, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        make_vit5().get_layer_depth(f'backbone.{name}', 'backbone.')
