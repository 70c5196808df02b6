"""The backbone with windowed attention, and what attention costs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tiny import TINY, Make, expected_tokens, gradients, picture
from vit5_dense import ViT5


@pytest.mark.parametrize('grid', [(5, 9), (14, 14), (20, 31)])
@pytest.mark.parametrize('window', [4, 7])
def test_windowed_blocks_equal_a_mask_over_all_pairs(
    make_vit5: Make, grid: tuple[int, int], window: int
) -> None:
    options = {'window_size': window, 'global_attn_indexes': (1,)}
    model, x = make_vit5(**options), picture(grid[0] * 16 - 3, grid[1] * 16 - 7)
    with torch.no_grad():
        tokens, _ = model.forward_tokens(x)
        expected = expected_tokens(model, x, **options)
    for found, value in zip(tokens, expected, strict=True):
        torch.testing.assert_close(found, value.float(), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize('window', [6, 9])
def test_one_window_over_the_grid_equals_global_attention(make_vit5: Make, window: int) -> None:
    x = picture(80, 96, batch=2)
    windowed, whole = make_vit5(window_size=window).train(), make_vit5().train()
    torch.testing.assert_close(windowed(x), whole(x), atol=1e-5, rtol=1e-5)
    found, expected = gradients(windowed, x), gradients(whole, x)
    assert set(found) == set(expected)
    for name, value in found.items():
        scale = max(1.0, expected[name].abs().max().item())
        torch.testing.assert_close(value / scale, expected[name] / scale, atol=1e-5, rtol=0)


def test_one_state_dict_serves_windowed_and_global_models(make_vit5: Make) -> None:
    windowed = ViT5(
        arch=TINY,
        pretrain_img_size=64,
        out_indices=(0, 1, 2),
        window_size=2,
        global_attn_indexes=(2,),
    )
    assert not any(windowed.load_state_dict(make_vit5().state_dict(), strict=True))


@pytest.mark.parametrize(
    ('indexes', 'windowed'),
    [
        ((), [True, True, True]),
        ((1,), [True, False, True]),
        ((0, -1), [False, True, False]),
        ((0, 1, 2), [False, False, False]),
    ],
)
def test_global_attn_indexes_choose_the_blocks_that_see_everything(
    make_vit5: Make, indexes: tuple[int, ...], windowed: list[bool]
) -> None:
    """In a windowed block the patch in one corner does not feel the one in the other."""
    model, x = make_vit5(window_size=2, global_attn_indexes=indexes), picture(64, 64)
    seen: dict[int, Tensor] = {}
    for index, block in enumerate(model.blocks):

        def leaf(_: nn.Module, args: tuple, index: int = index) -> tuple:
            seen[index] = args[0].detach().requires_grad_()
            return (seen[index], *args[1:])

        block.register_forward_pre_hook(leaf)
    maps = model(x)
    felt = [
        torch.autograd.grad(out[0, :, 0, 0].sum(), seen[index])[0][0, 16].abs().sum().item()
        for index, out in enumerate(maps)
    ]
    assert [value == 0 for value in felt] == windowed


def test_global_attn_indexes_beyond_the_last_tap_are_no_mistake() -> None:
    """They belong to the size, as the blocks do that were not built."""
    model = ViT5(
        arch={**TINY, 'depth': 6}, out_indices=(1,), window_size=2, global_attn_indexes=(2, 5)
    )
    assert len(model.blocks) == 2


class Count(TorchDispatchMode):
    """Number of cosines that were computed."""

    def __init__(self) -> None:
        super().__init__()
        self.cosines = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.cosines += func.overloadpacket.__name__ in ('cos', 'cos_', 'sin', 'polar')
        return func(*args, **(kwargs or {}))


def test_rope_tables_are_computed_once_per_forward_and_not_once_per_block() -> None:
    counts = []
    for depth, size in [(1, (48, 80)), (5, (80, 48))]:
        model = ViT5(arch={**TINY, 'depth': depth}, out_indices=(-1,))
        with Count() as count, torch.no_grad():
            model(picture(*size))
        counts.append(count.cosines)
    assert counts[0] == counts[1] > 0


def test_attention_runs_on_four_dimensions_and_without_a_mask(
    make_vit5: Make, sdpa_calls: list[dict[str, Any]]
) -> None:
    make_vit5()(picture(64, 80, batch=2))
    assert len(sdpa_calls) == 3
    for call in sdpa_calls:
        assert all(call[name].shape == (2, 2, 25, 16) for name in 'qkv')
        assert call['mask'] is None
