"""Fixtures shared by the whole suite."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiny import TINY
from tiny_run import forget_runs
from vit5_dense import ViT5
from vit5_dense.layers import attention

SHARED = Path(__file__).resolve().parents[1] / '..' / 'shared'


def randomise(module: nn.Module) -> None:
    """Give every parameter a size at which it matters: nothing is all ones, zeros or 1e-4."""
    for name, param in module.named_parameters():
        part = name.split('.')[-2:]
        if param.ndim > 1 and name.endswith('weight'):
            nn.init.normal_(param, std=param[0].numel() ** -0.5)
        elif part[-1] == 'weight' or 'gamma' in part[-1]:
            nn.init.uniform_(param, 0.5, 2.0)
        else:
            nn.init.normal_(param, std=0.5)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Every test starts from the same random state and without the runs of the tests before."""
    torch.manual_seed(0)
    forget_runs()


@pytest.fixture
def make_vit5() -> Callable[..., ViT5]:
    """Builder of 3-block ViT-5s of width 32 with a 4x4 pre-training grid and random weights.

    Equal sizes give equal weights. Options replace the defaults.
    """

    def build(**options: Any) -> ViT5:
        model = ViT5(**{'arch': TINY, 'pretrain_img_size': 64, 'out_indices': (0, 1, 2), **options})
        torch.manual_seed(1)
        randomise(model)
        return model.eval()

    return build


@pytest.fixture
def randomised() -> Callable[[nn.Module], nn.Module]:
    """Function that makes every parameter of a module matter, and returns the module."""

    def fill(module: nn.Module) -> nn.Module:
        randomise(module)
        return module

    return fill


@pytest.fixture
def sdpa_calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Arguments of every call of scaled_dot_product_attention from here on, on any processor."""
    monkeypatch.setattr(attention, 'SLOW_ATTENTION', False)
    calls: list[dict[str, Any]] = []
    real = F.scaled_dot_product_attention

    def spy(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        calls.append({'q': query, 'k': key, 'v': value, 'mask': attn_mask})
        return real(query, key, value, attn_mask, *args, **kwargs)

    monkeypatch.setattr(F, 'scaled_dot_product_attention', spy)
    return calls


@pytest.fixture(scope='session')
def shared() -> Path:
    """Folder of reference numbers beside the repository; tests that need it skip without it."""
    if not SHARED.is_dir():
        pytest.skip(f'no reference data at {SHARED}')
    return SHARED
