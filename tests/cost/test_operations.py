from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tiny_run import DEMO, call
from vit5_dense import ViT5
from vit5_dense.cost.floor import Floor
from vit5_dense.cost.operations import attention_macs, backbone_macs, count
from vit5_dense.layers.linear import linear


def test_attention_by_hand() -> None:
    """10 queries on 20 keys of 8 channels: 10 x 20 products of 8, twice."""
    assert attention_macs(10, 20, 8) == 3200


@pytest.mark.parametrize('size', [(224, 224), (100, 333)])
@pytest.mark.parametrize('window', [None, 5])
@pytest.mark.parametrize('arch', ['ti', 's', 'b'])
def test_the_formula_equals_the_count(arch: str, window: int | None, size: tuple[int, int]) -> None:
    model = ViT5(arch, window_size=window, global_attn_indexes=(5,) if window else ()).eval()
    counted = count(model, torch.zeros(1, 3, *size)).total()
    assert counted == pytest.approx(sum(backbone_macs(model, *size).values()), rel=1e-9)


def test_a_known_size_by_hand() -> None:
    """Tiny at 32 px: 4 patches and 5 special tokens, 12 blocks of width 192."""
    macs = backbone_macs(ViT5('ti'), 32, 32)
    assert macs == {
        'patch_embed': 4 * 192 * 768,
        'qkv': 12 * 9 * 192 * 576,
        'proj': 12 * 9 * 192 * 192,
        'mlp': 12 * 9 * 192 * 768 * 2,
        'attention': 12 * 2 * 9 * 9 * 192,
    }


@pytest.mark.parametrize('product', [F.linear, linear])
@pytest.mark.parametrize('window', [None, 2])
def test_the_floor_has_the_products_of_the_model(window: int | None, product: Any) -> None:
    model = ViT5('ti', window_size=window, global_attn_indexes=(5,) if window else ()).eval()
    floor = count(Floor(model, product), torch.zeros(1, 3, 64, 96)).total()
    assert floor == sum(backbone_macs(model, 64, 96).values())


def test_parts_of_a_model_add_up() -> None:
    rows = {row['name']: row for row in call('analyze_model', DEMO, '--size', '64', '96')}
    assert set(rows) == {'backbone', 'neck', 'decode_head', 'total'}
    assert rows['backbone']['macs'] == sum(backbone_macs(ViT5('ti'), 64, 96).values())
    parts = sum(row['macs'] for name, row in rows.items() if name != 'total')
    assert parts <= rows['total']['macs'] < 1.01 * parts
