"""The backbone under torch.compile, traced by dynamo but not turned into machine code."""

import copy
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from tiny import Make, gradients, picture


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def test_no_new_graph_after_the_second_size(make_vit5: Make) -> None:
    """Whole graphs: one for the first size, one for all others, padded and not, up and down."""
    model, counter = make_vit5().eval(), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    counts = []
    with torch.inference_mode():
        for size in [(96, 96), (128, 160), (160, 128), (176, 112), (90, 250), (256, 320), (96, 96)]:
            x = picture(*size)
            torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-5)
            counts.append(counter.frame_count)
    assert counts == [1, 2, 2, 2, 2, 2, 2]


def test_windows_compile_whole(make_vit5: Make) -> None:
    """Whether windows are padded makes a graph of its own; sizes do not."""
    model, counter = make_vit5(window_size=3).eval(), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    counts = []
    with torch.inference_mode():
        for size in [(96, 144), (144, 192), (80, 128), (112, 160)]:
            x = picture(*size)
            torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-5)
            counts.append(counter.frame_count)
    assert counts == [1, 1, 2, 2]


@pytest.mark.parametrize('with_cp', [False, True, 'gelu'])
def test_compiled_option_trains_like_eager(
    make_vit5: Make, monkeypatch: pytest.MonkeyPatch, with_cp: bool | str
) -> None:
    monkeypatch.setattr(torch, 'compile', partial(torch.compile, backend='aot_eager'))
    model, plain = make_vit5(compiled=True, with_cp=with_cp), make_vit5()
    assert list(model.state_dict()) == list(plain.state_dict())
    x = picture(64, 80, batch=2)
    found, expected = gradients(model.train(), x), gradients(plain.train(), x)
    assert torch._dynamo.utils.counters['stats']['unique_graphs'] >= 1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_compiled_drop_path_drops_whole_branches(
    make_vit5: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one block a sample has one of four values: neither branch, one, the other, both."""
    monkeypatch.setattr(torch, 'compile', partial(torch.compile, backend='aot_eager'))
    x, values = picture(16, 16).expand(100, -1, -1, -1), []
    for compiled in (False, True):
        model = make_vit5(compiled=compiled, drop_path_rate=0.5, out_indices=(0,)).train()
        with torch.no_grad():
            samples = model(x)[0].flatten(1)
        found = samples.mul(1e4).round().unique(dim=0)
        assert len(found) == 4
        values.append(found / 1e4)
    torch.testing.assert_close(values[1], values[0], atol=3e-4, rtol=0)


def test_a_copy_of_a_compiled_backbone_runs(make_vit5: Make) -> None:
    """Averaging of weights copies the model; the copy runs uncompiled."""
    other = copy.deepcopy(make_vit5(compiled=True).eval())
    x = picture(64, 80)
    with torch.no_grad():
        torch.testing.assert_close(other(x), make_vit5().eval()(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('strict', [True, False])
def test_an_exported_backbone_has_real_numbers_only(make_vit5: Make, strict: bool) -> None:
    """Runtimes and exporters have no complex numbers."""
    x = picture(64, 80)
    exported = torch.export.export(make_vit5().eval(), (x,), strict=strict)
    assert 'complex' not in str(exported.graph)
    torch.testing.assert_close(exported.module()(x), make_vit5().eval()(x), atol=1e-5, rtol=1e-5)
