from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

from tiny import TINY, picture
from tiny_run import call, scenes, write_config
from vit5_dense import ViT5
from vit5_dense.errors import UserError
from vit5_dense.optim import ViT5LayerDecayOptimWrapperConstructor

pytest.importorskip('peft', reason='peft is not installed: pip install -e .[lora]')

from vit5_dense.backbones import ViT5LoRA
from vit5_dense.backbones.lora import merge_lora

LAYERS = ('attn.qkv', 'attn.proj', 'mlp.fc1', 'mlp.fc2')


def build(checkpoint: Path | None = None, **options: Any) -> ViT5LoRA:
    init_cfg = {'type': 'Pretrained', 'checkpoint': str(checkpoint)} if checkpoint else None
    model = ViT5LoRA(
        arch=TINY, pretrain_img_size=64, out_indices=(2,), init_cfg=init_cfg, **options
    )
    model.init_weights()
    return model


@pytest.fixture
def plain(make_vit5: Callable[..., ViT5], tmp_path: Path) -> tuple[ViT5, Path]:
    """A ViT-5 and a file of it."""
    model = make_vit5(out_indices=(2,))
    torch.save(model.state_dict(), tmp_path / 'plain.pth')
    return model, tmp_path / 'plain.pth'


def disturb(model: nn.Module) -> None:
    for name, param in model.named_parameters():
        if 'lora_B' in name:
            nn.init.normal_(param, std=0.1)


def test_it_starts_as_the_model_in_the_file(plain: tuple[ViT5, Path]) -> None:
    reference, path = plain
    x = picture(64, 96)
    with torch.no_grad():
        torch.testing.assert_close(build(path).eval()(x), reference(x))


def test_only_adapters_train_and_the_rest_stays_bit_for_bit(plain: tuple[ViT5, Path]) -> None:
    model = build(plain[1], r=2).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    holder = nn.Module()
    holder.backbone = model
    wrapper = ViT5LayerDecayOptimWrapperConstructor(
        {'optimizer': {'type': 'AdamW', 'lr': 0.1, 'weight_decay': 0.1}}
    )(holder)
    trained = [n for group in wrapper.param_groups for n in group.get('param_names', ())]
    expected = {
        f'backbone.blocks.{i}.{layer}.lora_{half}.default.weight'
        for i in range(3)
        for layer in LAYERS
        for half in 'AB'
    }
    assert sorted(trained) == sorted(expected)
    for _ in range(3):
        wrapper.update_params(model(picture(64, 64))[0].square().mean())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) != (f'backbone.{name}' in expected), name


def test_merged_weights_are_those_of_a_plain_model(plain: tuple[ViT5, Path]) -> None:
    model = build(plain[1], r=2, alpha=6)
    disturb(model)
    other = ViT5(TINY, 64, out_indices=(2,))
    other.load_state_dict(model.merge(), strict=True)
    x = picture(64, 96)
    with torch.no_grad():
        wanted = model.eval()(x)
        torch.testing.assert_close(other.eval()(x), wanted, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(plain[0](x)[0], wanted[0], atol=1e-2)
    state = model.state_dict()
    layer = 'blocks.1.mlp.fc1'
    expected = state[f'{layer}.base_layer.weight'] + 3 * (
        state[f'{layer}.lora_B.default.weight'] @ state[f'{layer}.lora_A.default.weight']
    )
    torch.testing.assert_close(model.merge()[f'{layer}.weight'], expected)


def test_a_state_without_adapters_is_left_alone(plain: tuple[ViT5, Path]) -> None:
    state = plain[0].state_dict()
    merged = merge_lora(state)
    assert list(merged) == list(state)
    assert all(merged[name] is state[name] for name in state)


def test_the_patch_embedding_and_frozen_blocks_have_no_adapters() -> None:
    model = build(frozen_stages=2, target_modules=('qkv', 'proj'))
    adapted = {name.split('.lora_')[0] for name, _ in model.named_parameters() if '.lora_' in name}
    assert adapted == {'blocks.2.attn.qkv', 'blocks.2.attn.proj'}


def test_recomputing_draws_the_same_dropout(plain: tuple[ViT5, Path]) -> None:
    x, found = picture(64, 96), []
    for with_cp in (False, 'gelu', True):
        torch.manual_seed(1)
        model = build(plain[1], dropout=0.5, with_cp=with_cp).train()
        disturb(model)
        sum(level.square().sum() for level in model(x)).backward()
        found.append([p.grad for p in model.parameters() if p.requires_grad])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_it_is_registered_and_a_misspelt_option_raises() -> None:
    assert MODELS.get('ViT5LoRA') is ViT5LoRA
    with pytest.raises(TypeError, match='rr'):
        ViT5LoRA(rr=3)


def test_a_run_by_one_option_is_published_for_the_plain_model(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = scenes(tmp_path_factory)
    config = write_config(tmp_path, data, 'train_cfg.update(max_iters=2)\n')
    option = ['--cfg-options', 'model.backbone.type=ViT5LoRA']
    call('train', config, '--work-dir', tmp_path / 'work', *option)
    trained = tmp_path / 'work' / 'iter_2.pth'
    scores = call('test', config, trained, '--work-dir', tmp_path / 'a', *option)
    published = call('publish_checkpoint', trained, tmp_path / 'shared.pth')
    assert call('test', config, published, '--work-dir', tmp_path / 'b') == pytest.approx(scores)


def test_without_peft_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__('sys').modules, 'peft', None)
    with pytest.raises(UserError, match=r'\[lora\]'):
        build()
