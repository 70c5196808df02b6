from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from vit5_dense.layers import linear as module
from vit5_dense.layers.linear import Linear


@pytest.mark.parametrize('mode', ['bfloat16', 'float16', 'autocast'])
@pytest.mark.parametrize('bias', [True, False])
def test_half_products_on_slow_processors_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, mode: str, bias: bool
) -> None:
    """Type, shape and, but for the last rounding, the values and gradients."""
    torch.manual_seed(0)
    layer, x = Linear(96, 40, bias=bias), torch.randn(2, 7, 96)
    dtype = torch.float32 if mode == 'autocast' else getattr(torch, mode)
    layer, x = layer.to(dtype), x.to(dtype).requires_grad_()
    found = []
    for slow in (True, False):
        monkeypatch.setattr(module, 'SLOW_HALF', slow)
        layer.zero_grad()
        with torch.autocast('cpu', torch.bfloat16, enabled=mode == 'autocast'):
            out = layer(x)
        gradients = torch.autograd.grad(out.float().square().sum(), [x, *layer.parameters()])
        found.append([out, *gradients])
    assert found[0][0].dtype == (torch.bfloat16 if mode == 'autocast' else dtype)
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        step = 2**-10 if mode == 'float16' else 2**-7
        scale = other.float().abs().max().item()
        torch.testing.assert_close(one.float(), other.float(), atol=4 * step * scale, rtol=0)


def test_slow_processors_multiply_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    types: list[torch.dtype] = []
    real = F.linear
    monkeypatch.setattr(F, 'linear', lambda x, *args: types.append(x.dtype) or real(x, *args))
    monkeypatch.setattr(module, 'SLOW_PRODUCTS', False)
    layer, x = Linear(8, 8).bfloat16(), torch.randn(2, 8).bfloat16()
    for slow in (True, False):
        monkeypatch.setattr(module, 'SLOW_HALF', slow)
        layer(x)
    layer.float()(x.float())
    assert types == [torch.float32, torch.bfloat16, torch.float32]


TOKENS = (2, 150, 96)  # as many values as a convolution needs to pay


def operators(function: Callable[[], Any]) -> set[str]:
    """Which of a product and a convolution ran."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        function()
    names = {event.key for event in seen.key_averages()}
    return names & {'aten::linear', 'aten::convolution', 'aten::convolution_backward'}


@pytest.fixture
def slow_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, 'SLOW_PRODUCTS', True)
    monkeypatch.setattr(module, 'CAPABILITY', 'AVX512')


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('shape', [TOKENS, (300, 96), (1, 2, 10, 15, 96)], ids=str)
def test_products_by_convolution_are_those_of_torch(
    slow_products: None, shape: tuple[int, ...], bias: bool
) -> None:
    """Values, strides and gradients, also of values that lie in another order."""
    torch.manual_seed(0)
    layer = Linear(96, 40, bias=bias)
    reversed_axes = torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
    for x in (torch.randn(shape), reversed_axes):
        x.requires_grad_()
        seen = operators(lambda x=x: layer(x).sum().backward())
        assert seen == {'aten::convolution', 'aten::convolution_backward'}
        out, wanted = layer(x), F.linear(x, layer.weight, layer.bias)
        assert out.is_contiguous()
        torch.testing.assert_close(out, wanted, atol=2e-6, rtol=1e-5)
        inputs = [x, *layer.parameters()]
        for one, other in zip(
            torch.autograd.grad(out.square().sum(), inputs),
            torch.autograd.grad(wanted.square().sum(), inputs),
            strict=True,
        ):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ('capability', 'gradients', 'shape', 'dtype', 'wanted'),
    [
        ('AVX512', True, TOKENS, 'float32', 'aten::convolution'),
        ('AVX512', False, TOKENS, 'float32', 'aten::convolution'),
        ('AVX2', False, TOKENS, 'float32', 'aten::convolution'),
        ('AVX2', True, TOKENS, 'float32', 'aten::linear'),
        ('AVX512', False, (2, 5, 96), 'float32', 'aten::linear'),
        ('AVX512', False, (0, 150, 96), 'float32', 'aten::linear'),
        ('AVX512', False, TOKENS, 'float64', 'aten::linear'),
        ('AVX512', False, TOKENS, 'bfloat16', 'aten::linear'),
    ],
)
def test_where_products_are_convolutions(
    monkeypatch: pytest.MonkeyPatch,
    slow_products: None,
    capability: str,
    gradients: bool,
    shape: tuple[int, ...],
    dtype: str,
    wanted: str,
) -> None:
    monkeypatch.setattr(module, 'CAPABILITY', capability)
    monkeypatch.setattr(module, 'SLOW_HALF', False)
    layer, x = (
        Linear(96, 40).to(getattr(torch, dtype)),
        torch.randn(shape).to(getattr(torch, dtype)),
    )
    with torch.set_grad_enabled(gradients):
        assert operators(lambda: layer(x)) == {wanted}
        monkeypatch.setattr(module, 'SLOW_PRODUCTS', False)
        assert operators(lambda: layer(x)) == {'aten::linear'}


def test_autocast_chooses_its_own_kernels(
    monkeypatch: pytest.MonkeyPatch, slow_products: None
) -> None:
    monkeypatch.setattr(module, 'SLOW_HALF', False)
    layer, x = Linear(96, 40), torch.randn(TOKENS)
    with torch.autocast('cpu', torch.bfloat16):
        assert operators(lambda: layer(x)) == {'aten::linear'}
        assert layer(x).dtype == torch.bfloat16


@pytest.mark.parametrize('strict', [True, False])
def test_an_exported_product_is_one(slow_products: None, strict: bool) -> None:
    exported = torch.export.export(Linear(96, 40), (torch.randn(TOKENS),), strict=strict)
    names = [str(node.target) for node in exported.graph.nodes if node.op == 'call_function']
    assert names == ['aten.linear.default']


@pytest.mark.skipif(not hasattr(torch.compiler, '_is_exporting_flag'), reason='torch >= 2.7')
def test_a_compiled_product_is_one_operator(slow_products: None) -> None:
    """For any number of tokens, and with gradients."""
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        nodes = [node for node in graph.graph.nodes if node.op == 'call_function']
        graphs.append([str(node.target) for node in nodes])
        return graph.forward

    torch._dynamo.reset()
    layer = Linear(96, 40)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    with torch.no_grad():
        for tokens in (150, 160, 170):
            x = torch.randn(2, tokens, 96)
            torch.testing.assert_close(compiled(x), layer(x))
    assert len(graphs) <= 2
    assert all(graph == ['vit5_dense.convolve.default'] for graph in graphs), graphs
    x = torch.randn(TOKENS, requires_grad=True)
    wanted = torch.autograd.grad(layer(x).square().sum(), x)[0]
    torch.testing.assert_close(torch.autograd.grad(compiled(x).square().sum(), x)[0], wanted)
