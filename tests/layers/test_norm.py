"""RMSNorm and LayerNorm2d."""

import math

import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import nn

import vit5_dense  # noqa: F401  (registers the norm)
from vit5_dense.layers.norm import LayerNorm2d, RMSNorm


def test_divides_by_the_root_mean_square() -> None:
    norm = RMSNorm(4)
    out = norm(torch.tensor([[1.0, -1.0, 3.0, -3.0], [2.0, 2.0, 2.0, 2.0]]))
    root = math.sqrt(5)
    torch.testing.assert_close(
        out, torch.tensor([[1 / root, -1 / root, 3 / root, -3 / root], [1.0, 1.0, 1.0, 1.0]])
    )


def test_scales_each_channel_by_the_weight_and_has_nothing_else() -> None:
    norm = RMSNorm(3)
    assert [name for name, _ in norm.named_parameters()] == ['weight']
    norm.weight.data = torch.tensor([1.0, 2.0, -4.0])
    torch.testing.assert_close(norm(torch.ones(1, 3)), torch.tensor([[1.0, 2.0, -4.0]]))


def test_eps_is_added_to_the_mean_square() -> None:
    out = RMSNorm(2, eps=1e-6)(torch.tensor([[1e-3, 1e-3], [0.0, 0.0]]))
    torch.testing.assert_close(out, torch.tensor([[math.sqrt(0.5), math.sqrt(0.5)], [0.0, 0.0]]))


def test_default_eps_is_that_of_the_reference() -> None:
    out = RMSNorm(2)(torch.full((1, 2), 1e-3))
    torch.testing.assert_close(out, torch.full((1, 2), math.sqrt(0.5)))


@pytest.fixture(params=['with F.rms_norm', 'without'])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test on this torch, and as on torch 2.1, which has no rms_norm."""
    if request.param == 'without':
        monkeypatch.delattr(F, 'rms_norm', raising=False)
        monkeypatch.delattr(nn, 'RMSNorm', raising=False)


@pytest.mark.usefixtures('kernel')
def test_half_values_whose_squares_overflow() -> None:
    """Statistics are taken in fp32: 60000 squared is far beyond what fp16 holds."""
    out = RMSNorm(4).half()(torch.tensor([[60000.0, -60000.0, 60000.0, 60000.0]]).half())
    torch.testing.assert_close(out, torch.tensor([[1.0, -1.0, 1.0, 1.0]]).half())


@pytest.mark.usefixtures('kernel')
def test_bf16_statistics_are_those_of_fp32() -> None:
    x = torch.randn(8, 512).bfloat16()
    expected = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    out = RMSNorm(512).bfloat16()(x)
    assert torch.equal(out, expected.to(torch.bfloat16))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize('weight_dtype', [torch.float32, None])
def test_leaves_in_the_type_that_came_in(
    dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> None:
    norm = RMSNorm(8).to(weight_dtype or dtype)
    assert norm(torch.randn(2, 8, dtype=dtype)).dtype == dtype
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert norm(torch.randn(2, 8, dtype=dtype)).dtype == dtype


def test_same_numbers_without_the_rms_norm_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.1 has neither F.rms_norm nor nn.RMSNorm."""
    norm, x = RMSNorm(32), torch.randn(4, 7, 32)
    x[0] *= 1e-3
    x[1] = 0
    x.requires_grad_()
    nn.init.uniform_(norm.weight, 0.5, 2.0)
    probe = torch.randn(4, 7, 32)
    before = norm(x)
    grad_before = torch.autograd.grad((before * probe).sum(), [x, norm.weight])
    monkeypatch.delattr(F, 'rms_norm', raising=False)
    monkeypatch.delattr(nn, 'RMSNorm', raising=False)
    after = norm(x)
    grad_after = torch.autograd.grad((after * probe).sum(), [x, norm.weight])
    torch.testing.assert_close(after, before, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(grad_after, grad_before, atol=1e-4, rtol=1e-5)


def test_layer_norm_2d_normalises_the_channels_of_each_pixel() -> None:
    norm = LayerNorm2d(3)
    nn.init.uniform_(norm.weight, 0.5, 2.0)
    nn.init.normal_(norm.bias)
    x = torch.randn(2, 3, 2, 5)
    out = norm(x)
    for b in range(2):
        for i in range(2):
            for j in range(5):
                pixel = x[b, :, i, j]
                scaled = (pixel - pixel.mean()) / (pixel.var(unbiased=False) + norm.eps).sqrt()
                torch.testing.assert_close(
                    out[b, :, i, j], scaled * norm.weight + norm.bias, atol=1e-5, rtol=1e-5
                )


def test_layer_norm_2d_is_found_by_configs() -> None:
    norm = MODELS.build({'type': 'ViT5LayerNorm2d', 'num_channels': 3})
    assert isinstance(norm, LayerNorm2d)
