"""Attention, global and in windows, against explicit sums over visible tokens."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import oracle
from tiny import FLOAT16
from vit5_dense.layers import TokenLayout
from vit5_dense.layers import attention as code
from vit5_dense.layers.attention import (
    Attention,
    attend,
    attend_in_portions,
    attention_weights,
    visible_tokens,
)
from vit5_dense.layers.rope import token_rotation

GRIDS = [(5, 9), (14, 14), (20, 31)]
Fill = Callable[[nn.Module], nn.Module]


def tokens_of(grid: tuple[int, int], batch: int = 2, dim: int = 32) -> Tensor:
    return torch.randn(batch, 1 + grid[0] * grid[1] + 4, dim)


def rotation_of(grid: tuple[int, int]) -> Tensor:
    return token_rotation(TokenLayout(grid, 4), 16, (14, 14))


def expected_attention(
    module: Attention, x: Tensor, grid: tuple[int, int], window: int | None
) -> Tensor:
    angles = oracle.token_angles(16, grid, (14, 14), 4)
    turns = torch.stack([oracle.rotation_matrix(angle) for angle in angles])
    weights = {f'attn.{name}': param for name, param in module.named_parameters()}
    return oracle.attention(
        x.double(), weights, 'attn.', 2, turns, oracle.visibility(grid, 4, window)
    )


def test_parameters_are_those_of_the_reference() -> None:
    shapes = {name: tuple(param.shape) for name, param in Attention(32, 2).named_parameters()}
    assert shapes == {
        'qkv.weight': (96, 32),
        'q_norm.weight': (16,),
        'k_norm.weight': (16,),
        'proj.weight': (32, 32),
        'proj.bias': (32,),
    }


@pytest.mark.parametrize('grid', [(8, 32), (32, 8), (7, 5), (1, 9), (1, 1)])
def test_global_attention(randomised: Fill, grid: tuple[int, int]) -> None:
    module, x = randomised(Attention(32, 2)), tokens_of(grid)
    found = module(x, rotation_of(grid), TokenLayout(grid, 4))
    torch.testing.assert_close(
        found, expected_attention(module, x, grid, None).float(), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize('grid', [*GRIDS, (1, 9), (3, 2)])
@pytest.mark.parametrize('window', [4, 7])
def test_windows_equal_a_mask_over_all_pairs(
    randomised: Fill, grid: tuple[int, int], window: int
) -> None:
    module, x = randomised(Attention(32, 2, window_size=window)), tokens_of(grid)
    found = module(x, rotation_of(grid), TokenLayout(grid, 4))
    torch.testing.assert_close(
        found, expected_attention(module, x, grid, window).float(), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(('grid', 'window'), [((5, 9), 4), ((9, 5), 7), ((8, 8), 4)])
def test_gradients_of_windows_equal_those_of_a_mask(
    randomised: Fill, grid: tuple[int, int], window: int
) -> None:
    module = randomised(Attention(32, 2, window_size=window))
    x = tokens_of(grid).requires_grad_()
    probe = torch.randn_like(x)
    targets = [x, *module.parameters()]
    found = torch.autograd.grad(
        (module(x, rotation_of(grid), TokenLayout(grid, 4)) * probe).sum(), targets
    )
    expected = torch.autograd.grad(
        (expected_attention(module, x, grid, window) * probe).sum(), targets
    )
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(('grid', 'window'), [((5, 9), 9), ((7, 7), 7), ((3, 2), 8), ((1, 1), 4)])
def test_one_window_over_the_grid_is_global_attention(
    randomised: Fill, grid: tuple[int, int], window: int
) -> None:
    whole, windowed = Attention(32, 2), Attention(32, 2, window_size=window)
    windowed.load_state_dict(randomised(whole).state_dict(), strict=True)
    layout, x = TokenLayout(grid, 4), tokens_of(grid).requires_grad_()
    probe = torch.randn_like(x)
    results = []
    for module in (whole, windowed):
        out = module(x, rotation_of(grid), layout)
        grads = torch.autograd.grad((out * probe).sum(), [x, *module.parameters()])
        results.append((out, grads))
    torch.testing.assert_close(results[1][0], results[0][0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(results[1][1], results[0][1], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize('top', [0, 4, 8])
@pytest.mark.parametrize('left', [0, 4])
def test_a_window_is_global_attention_among_its_own(randomised: Fill, top: int, left: int) -> None:
    """Its patches, the special tokens and their rows of the one table: nothing else matters."""
    grid, rotation, x = (10, 8), rotation_of((10, 8)), tokens_of((10, 8))
    windowed = randomised(Attention(32, 2, window_size=4))
    whole = Attention(32, 2)
    whole.load_state_dict(windowed.state_dict())
    inside = [1 + i * 8 + j for i in range(top, min(top + 4, 10)) for j in range(left, left + 4)]
    chosen = [0, *inside, 81, 82, 83, 84]
    alone = whole(
        x[:, chosen],
        rotation[chosen],
        TokenLayout((len(inside) // 4, 4), 4),
    )
    found = windowed(x, rotation, TokenLayout(grid, 4))
    torch.testing.assert_close(found[:, inside], alone[:, 1:-4], atol=1e-5, rtol=1e-5)


def test_a_patch_is_reached_from_its_window_and_the_specials_only(randomised: Fill) -> None:
    module, grid = randomised(Attention(32, 2, window_size=4)), (5, 9)
    x = tokens_of(grid, batch=1).requires_grad_()
    found = module(x, rotation_of(grid), TokenLayout(grid, 4))
    seen = oracle.visibility(grid, 4, 4)
    for n in (0, 1, 9, 37, 45, 46, 49):
        grad = torch.autograd.grad(found[0, n].sum(), x, retain_graph=True)[0][0]
        assert torch.equal(grad.abs().sum(-1) > 0, seen[n]), f'token {n}'


@pytest.mark.parametrize('value', [1e4, -1e4, 0.5])
def test_what_stands_in_the_padding_does_not_matter(
    randomised: Fill, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """Queries, keys and values (of 16 channels) are padded with something else than zeros."""
    module, grid = randomised(Attention(32, 2, window_size=4)), (5, 9)
    x, layout = tokens_of(grid), TokenLayout(grid, 4)
    before = module(x, rotation_of(grid), layout)
    pads = []
    real = F.pad

    def poisoned(x: Tensor, pad: Any, *args: Any, **kwargs: Any) -> Tensor:
        if x.shape[-1] == 16:
            pads.append(pad)
            return real(x, pad, value=value)
        return real(x, pad, *args, **kwargs)

    monkeypatch.setattr(F, 'pad', poisoned)
    after = module(x, rotation_of(grid), layout)
    assert pads, 'the grid is not padded with F.pad any more: poison what pads it now'
    torch.testing.assert_close(after, before, atol=1e-6, rtol=1e-6)


def test_sdpa_sees_four_dimensions_and_no_mask(
    randomised: Fill, sdpa_calls: list[dict[str, Any]]
) -> None:
    grid = (14, 14)
    randomised(Attention(32, 2))(tokens_of(grid), rotation_of(grid), TokenLayout(grid, 4))
    assert len(sdpa_calls) == 1
    call = sdpa_calls[0]
    assert call['q'].shape == call['k'].shape == call['v'].shape == (2, 2, 201, 16)
    assert call['mask'] is None


@pytest.mark.parametrize(('grid', 'window', 'windows'), [((14, 14), 7, 4), ((20, 31), 7, 15)])
def test_windows_are_folded_into_the_batch(
    randomised: Fill,
    sdpa_calls: list[dict[str, Any]],
    grid: tuple[int, int],
    window: int,
    windows: int,
) -> None:
    """All windows in one call of 4-D tensors; specials apart; no mask of all pairs anywhere."""
    module = randomised(Attention(32, 2, window_size=window))
    module(tokens_of(grid), rotation_of(grid), TokenLayout(grid, 4))
    shapes = [(tuple(call['q'].shape), call['k'].shape[2]) for call in sdpa_calls]
    all_tokens, own = 1 + grid[0] * grid[1] + 4, window * window
    assert all(call[name].ndim == 4 for call in sdpa_calls for name in 'qkv')
    patches = [(shape, keys) for shape, keys in shapes if shape[0] == 2 * windows]
    assert len(patches) == 1
    assert patches[0][0][2] in (own, own + 5)
    assert patches[0][1] == own + 5
    specials = [(shape, keys) for shape, keys in shapes if shape[0] == 2]
    assert specials == [((2, 2, 5, 16), all_tokens)]
    assert len(shapes) == 2
    for call in sdpa_calls:
        if call['mask'] is not None:
            assert call['mask'].numel() <= 2 * windows * (own + 5)


class LargestPair(TorchDispatchMode):
    """Largest n such that some operation returned a tensor with two dimensions of n or more."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, Tensor) and value.ndim > 1:
                self.found = max(self.found, sorted(value.shape)[-2])
        return out


@pytest.mark.parametrize('window', [None, 7])
def test_no_tensor_of_all_pairs_is_made_outside_sdpa(
    randomised: Fill, monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    grid = (20, 31)
    module, x = randomised(Attention(32, 2, window_size=window)), tokens_of(grid)
    monkeypatch.setattr(F, 'scaled_dot_product_attention', lambda q, k, v, **_: q * v.sum())
    with LargestPair() as largest:
        module(x, rotation_of(grid), TokenLayout(grid, 4)).sum().backward()
    assert 0 < largest.found < 620


@pytest.mark.parametrize('window', [None, 4])
@pytest.mark.parametrize('mode', ['bfloat16', FLOAT16, 'autocast'])
def test_query_key_and_value_leave_in_one_type(
    randomised: Fill, sdpa_calls: list[dict[str, Any]], mode: str, window: int | None
) -> None:
    grid, layout = (5, 9), TokenLayout((5, 9), 4)
    module, x = randomised(Attention(32, 2, window_size=window)), tokens_of(grid)
    exact = expected_attention(module, x, grid, window)
    dtype = torch.bfloat16 if mode == 'autocast' else getattr(torch, mode)
    if mode == 'autocast':
        with torch.autocast('cpu', dtype=dtype):
            found = module(x, rotation_of(grid), layout)
    else:
        found = module.to(dtype)(x.to(dtype), rotation_of(grid), layout)
    assert sdpa_calls
    assert {call[name].dtype for call in sdpa_calls for name in 'qkv'} == {dtype}
    assert found.dtype == dtype
    assert ((found - exact).pow(2).mean() / exact.pow(2).mean()).sqrt() < 0.02


@pytest.mark.parametrize('window', [None, 4, 3])
def test_rows_of_weights_give_what_attention_gives(
    randomised: Fill, sdpa_calls: list[dict[str, Any]], window: int | None
) -> None:
    """Of patches in the middle and in a window that is cut short, of CLS and of a register."""
    grid, layout = (5, 9), TokenLayout((5, 9), 4)
    module, x = randomised(Attention(32, 2, window_size=window)), tokens_of(grid)
    mixed = []
    module.proj.register_forward_pre_hook(lambda _, args: mixed.append(args[0]))
    module(x, rotation_of(grid), layout)
    assert sdpa_calls
    expected = mixed[0].unflatten(2, (2, 16))  # (B, N, heads, D)
    q, k, v = module.queries_keys_values(x, rotation_of(grid))
    for token in (0, 1, 22, 45, 46, 49):
        visible = visible_tokens(layout, window, token)
        assert torch.equal(visible, oracle.visibility(grid, 4, window)[token])
        weights = attention_weights(q, k, visible, token)
        torch.testing.assert_close(weights.sum(2), torch.ones(2, 2))
        found = torch.einsum('bhn,bhnd->bhd', weights, v)
        torch.testing.assert_close(found, expected[:, token], atol=1e-5, rtol=1e-5)


def test_a_row_of_weights_makes_no_tensor_of_all_pairs(randomised: Fill) -> None:
    grid, layout = (20, 31), TokenLayout((20, 31), 4)
    module = randomised(Attention(32, 2, window_size=7))
    q, k, _ = module.queries_keys_values(tokens_of(grid), rotation_of(grid))
    with LargestPair() as largest:
        attention_weights(q, k, visible_tokens(layout, 7, 300), 300)
    assert 0 < largest.found < 620


@pytest.mark.parametrize(
    ('batch', 'queries', 'keys'),
    [(2, 600, 600), (1, 5, 3000), (3, 1, 1), (0, 9, 9), (16, 261, 300)],
)
@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16], ids=str)
def test_attention_in_portions_is_attention(
    batch: int, queries: int, keys: int, dtype: torch.dtype
) -> None:
    """One softmax over all keys, whatever the portions; values may lie in any order."""
    torch.manual_seed(0)
    q = torch.randn(batch, queries, 6, 16, dtype=dtype).transpose(1, 2)
    k, v = torch.randn(2, batch, keys, 6, 16, dtype=dtype).transpose(2, 3)
    scores = q.double() @ k.double().transpose(2, 3) / 4
    wanted = (scores.softmax(3) @ v.double()).to(dtype)
    with torch.no_grad():
        found = attend_in_portions(q, k, v)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)


def test_where_attention_is_in_portions(
    monkeypatch: pytest.MonkeyPatch, sdpa_calls: list[dict[str, Any]]
) -> None:
    half, full = torch.randn(3, 1, 2, 9, 16).bfloat16(), torch.randn(3, 1, 2, 9, 16)

    def is_torchs(values: Tensor) -> bool:
        sdpa_calls.clear()
        attend(*values)
        return bool(sdpa_calls)

    monkeypatch.setattr(code, 'SLOW_ATTENTION', True)
    assert is_torchs(half)  # gradients
    with torch.no_grad():
        assert not is_torchs(half)
        assert is_torchs(full)
        monkeypatch.setattr(code, 'SLOW_ATTENTION', False)
        assert is_torchs(half)


@pytest.mark.skipif(not hasattr(torch.compiler, '_is_exporting_flag'), reason='torch >= 2.7')
def test_compiled_and_exported_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """One operator of our own for a compiler, torch's operator in a file."""
    monkeypatch.setattr(code, 'SLOW_ATTENTION', True)
    names: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        names.extend(str(n.target) for n in graph.graph.nodes if n.op == 'call_function')
        return graph.forward

    class Attend(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(q, k, v)

    values = tuple(torch.randn(3, 1, 2, 9, 16).bfloat16())
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(Attend(), backend=backend, fullgraph=True)(*values)
        torch.testing.assert_close(found, attend(*values), atol=0, rtol=0)
        assert names == ['vit5_dense.attend_in_portions.default']
        for strict in (True, False):
            exported = torch.export.export(Attend(), values, strict=strict)
            nodes = [str(n.target) for n in exported.graph.nodes if n.op == 'call_function']
            assert nodes == ['aten.scaled_dot_product_attention.default']
