import pytest
import torch
import torch.nn.functional as F

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
    layer, x = Linear(8, 8).bfloat16(), torch.randn(2, 8).bfloat16()
    for slow in (True, False):
        monkeypatch.setattr(module, 'SLOW_HALF', slow)
        layer(x)
    layer.float()(x.float())
    assert types == [torch.float32, torch.bfloat16, torch.float32]
