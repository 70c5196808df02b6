"""The backbone in training: drop path, freezing, checkpointing and precision."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tiny import FLOAT16, STEM, TINY, Make, gradients, picture


def test_drop_path_is_constant_over_depth(make_vit5: Make) -> None:
    """At rate 1/2 a block drops both of its branches for a quarter of the samples, early or late.

    The first block is followed by comparing it with the drop-free embedding.
    """
    arch = {**TINY, 'depth': 6}
    model = make_vit5(arch=arch, out_indices=range(6), drop_path_rate=0.5).train()
    x = picture(16, 16).expand(600, -1, -1, -1)
    still = make_vit5(arch=arch, out_indices=range(6))
    for name, param in still.named_parameters():
        if 'gamma' in name:
            param.data.zero_()
    with torch.no_grad():
        tokens = [still.forward_tokens(x)[0][0], *model.forward_tokens(x)[0]]
    shares = [
        (after == before).flatten(1).all(1).float().mean().item()
        for before, after in pairwise(tokens)
    ]
    assert len(shares) == 6
    assert shares == pytest.approx([0.25] * 6, abs=0.08)


@pytest.mark.parametrize('seed', range(4))
def test_skipping_dropped_samples_equals_computing_and_discarding_them(
    make_vit5: Make, seed: int
) -> None:
    """Values and gradients are those of every branch times mask / (1 - p), mask drawn once each."""
    rate, batch = 0.4, 3
    model, x = make_vit5(drop_path_rate=rate).train(), picture(48, 64, batch=batch)
    torch.manual_seed(seed)
    masks = iter([(torch.rand(batch) >= rate) / (1 - rate) for _ in range(6)])
    torch.manual_seed(seed)
    found = gradients(model, x)

    plain = make_vit5().train()
    for block in plain.blocks:
        for branch in (block.attn, block.mlp):
            scale = next(masks)[:, None, None]
            branch.register_forward_hook(lambda _, __, out, scale=scale: out * scale)
    torch.testing.assert_close(found, gradients(plain, x), atol=1e-4, rtol=1e-4)


def test_dropped_samples_are_not_computed(
    make_vit5: Make, sdpa_calls: list[dict[str, Any]]
) -> None:
    model = make_vit5(drop_path_rate=0.5).train()
    torch.manual_seed(0)
    model(picture(64, 64, batch=40))
    counts = [len(call['q']) for call in sdpa_calls]
    assert len(counts) == 3
    assert all(8 <= count <= 32 for count in counts)


def test_parameters_have_gradients_where_all_samples_are_dropped(make_vit5: Make) -> None:
    """DDP waits for the gradient of every parameter; here they are zero."""
    model, x = make_vit5(drop_path_rate=0.999).train(), picture(64, 64)
    torch.manual_seed(0)
    tokens = model.forward_tokens(x)[0]
    assert torch.equal(tokens[0], tokens[-1])
    found = gradients(model, x)
    assert {'blocks.0.attn.qkv.weight', 'blocks.2.mlp.fc2.bias', 'blocks.1.gamma_1'} <= set(found)
    assert not any(value.any() for name, value in found.items() if name.startswith('blocks.'))


def test_drop_path_is_off_in_eval(make_vit5: Make) -> None:
    model, x = make_vit5(drop_path_rate=0.9), picture(64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x), make_vit5()(x), atol=0, rtol=0)


@pytest.mark.parametrize(('stages', 'frozen_blocks'), [(-1, 0), (0, 0), (1, 1), (2, 2), (3, 3)])
def test_frozen_stages_freeze_the_stem_and_the_first_blocks(
    make_vit5: Make, stages: int, frozen_blocks: int
) -> None:
    model = make_vit5(frozen_stages=stages, out_norm=True)
    prefixes = tuple(f'blocks.{index}.' for index in range(frozen_blocks))
    for name, param in model.named_parameters():
        frozen = stages >= 0 and (name in STEM or name.startswith(prefixes))
        assert param.requires_grad is not frozen, name


def test_frozen_parts_stay_in_eval_whatever_train_is_told(make_vit5: Make) -> None:
    model = make_vit5(frozen_stages=2, drop_path_rate=0.9)
    for mode in (True, False, True):
        model.train(mode)
        assert model.training is mode
        for part in (model.patch_embed, model.blocks[0], model.blocks[1]):
            assert not any(module.training for module in part.modules())
        assert all(module.training is mode for module in model.blocks[2].modules())
    assert not any(param.requires_grad for param in model.blocks[1].parameters())


def test_frozen_blocks_drop_nothing(make_vit5: Make) -> None:
    model, x = make_vit5(frozen_stages=2, drop_path_rate=0.9).train(), picture(64, 64, batch=8)
    plain = make_vit5()
    with torch.no_grad():
        found, expected = model(x), plain(x)
    torch.testing.assert_close(found[:2], expected[:2], atol=0, rtol=0)
    assert not torch.allclose(found[2], expected[2], atol=1e-3)


def test_gradients_behind_frozen_stages_are_those_of_the_whole_model(make_vit5: Make) -> None:
    x = picture(64, 80)
    found = gradients(make_vit5(frozen_stages=1).train(), x)
    whole = gradients(make_vit5().train(), x)
    assert set(found) == {name for name in whole if name.startswith(('blocks.1.', 'blocks.2.'))}
    for name, value in found.items():
        torch.testing.assert_close(value, whole[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    'options',
    [
        {},
        {'frozen_stages': 0},
        {'frozen_stages': 1},
        {'drop_path_rate': 0.5},
        {'window_size': 3},
    ],
    ids=str,
)
def test_checkpointing_on_equals_off(make_vit5: Make, options: dict[str, Any]) -> None:
    x = picture(64, 80, batch=2)
    results = []
    for with_cp in (False, True, 'gelu'):
        model = make_vit5(with_cp=with_cp, **options).train()
        torch.manual_seed(5)
        results.append(gradients(model, x))
    assert results[0]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=1e-5, rtol=1e-5)


def test_checkpointing_runs_the_blocks_a_second_time_in_training_only(
    make_vit5: Make, sdpa_calls: list[dict[str, Any]]
) -> None:
    counts = {}
    for with_cp in (False, True):
        model = make_vit5(with_cp=with_cp).train()
        gradients(model, picture(64, 64))
        counts[with_cp, 'train'] = len(sdpa_calls)
        sdpa_calls.clear()
        with torch.no_grad():
            model.eval()(picture(64, 64))
        counts[with_cp, 'eval'] = len(sdpa_calls)
        sdpa_calls.clear()
    assert counts == {
        (False, 'train'): 3,
        (False, 'eval'): 3,
        (True, 'train'): 6,
        (True, 'eval'): 3,
    }


def saved_elements(model: nn.Module, x: torch.Tensor) -> int:
    """Numbers kept for the backward pass, parameters aside."""
    params = {param.data_ptr() for param in model.parameters()}
    storages = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in params:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model(x)
    assert outputs
    return sum(storage.nbytes() for storage in storages.values()) // 4


def test_recomputing_the_gelu_keeps_its_input_only(
    make_vit5: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 3 blocks with 21 tokens, 4 * 32 values wide, one of two such tensors is kept each."""
    x = picture(64, 64)
    whole = saved_elements(make_vit5().train(), x)
    less = saved_elements(make_vit5(with_cp='gelu').train(), x)
    assert whole - less == 3 * 21 * 128
    products: list[int] = []
    real = F.linear
    monkeypatch.setattr(F, 'linear', lambda *args: products.append(0) or real(*args))
    gradients(make_vit5(with_cp='gelu').train(), x)
    assert len(products) == 3 * 4 + 3  # fc2 is entered again for its input, and left before its end


@pytest.mark.parametrize('mode', ['bfloat16', FLOAT16, 'autocast'])
@pytest.mark.parametrize('window', [None, 4])
def test_low_precision_stays_close_to_fp32(
    make_vit5: Make, sdpa_calls: list[dict[str, Any]], mode: str, window: int | None
) -> None:
    model, x = make_vit5(window_size=window), picture(80, 144)
    with torch.no_grad():
        exact = model(x)
        sdpa_calls.clear()
        if mode == 'autocast':
            dtype = torch.bfloat16
            with torch.autocast('cpu', dtype=dtype):
                found = model(x)
        else:
            dtype = getattr(torch, mode)
            found = model.to(dtype)(x.to(dtype))
            assert all(out.dtype == dtype for out in found)
    assert sdpa_calls
    for call in sdpa_calls:
        assert {call[name].dtype for name in 'qkv'} == {dtype}
    for low, out in zip(found, exact, strict=True):
        assert low.isfinite().all()
        assert (low.float() - out).norm() / out.norm() < 0.03


@pytest.mark.parametrize('mode', ['bfloat16', 'autocast'])
@pytest.mark.parametrize('rope_scaling', ['interpolate', 'extrapolate'])
def test_low_precision_queries_are_turned_by_exact_angles(
    make_vit5: Make, sdpa_calls: list[dict[str, Any]], mode: str, rope_scaling: str
) -> None:
    """At the 399th column of 400 a bf16 angle would be off by up to a radian."""
    model = make_vit5(pretrain_img_size=1024, rope_scaling=rope_scaling, out_indices=(0,))
    x = picture(16, 400 * 16)
    with torch.no_grad():
        model(x)
        if mode == 'autocast':
            with torch.autocast('cpu', dtype=torch.bfloat16):
                model(x)
        else:
            model.bfloat16()(x.bfloat16())
    exact, low = (call['q'] for call in sdpa_calls)
    assert (low.float() - exact).abs().max() < 0.05 * exact.abs().max()


def test_same_numbers_without_the_rms_norm_of_torch(
    make_vit5: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch 2.1 has neither F.rms_norm nor nn.RMSNorm."""
    x = picture(64, 80)
    before = make_vit5()(x)
    monkeypatch.delattr(F, 'rms_norm', raising=False)
    monkeypatch.delattr(nn, 'RMSNorm', raising=False)
    torch.testing.assert_close(make_vit5(out_norm=False)(x), before, atol=1e-5, rtol=1e-5)
