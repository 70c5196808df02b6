"""ViT-5 under timm's interface."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.optim import param_groups_layer_decay

from tiny import TINY
from vit5_dense import ViT5
from vit5_dense.checkpoint_io import CheckpointError
from vit5_dense.timm_models import NAMES, VARIANTS, ViT5Classifier, default_cfgs


@pytest.fixture
def model() -> ViT5Classifier:
    """A 3-block classifier of width 32, whose blocks matter."""
    return ViT5Classifier(TINY, 64, num_classes=5, init_values=1.0).eval()


def test_all_names_are_registered_and_published_ones_have_their_file() -> None:
    assert NAMES
    assert set(NAMES) <= set(timm.list_models('vit5*'))
    with_weights = {name for name in NAMES if default_cfgs[name]['url']}
    assert with_weights == {
        'vit5_small_patch16_224',
        'vit5_base_patch16_224',
        'vit5_base_patch16_384',
        'vit5_large_patch16_224',
        'vit5_large_patch16_384',
    }
    assert all(default_cfgs[name]['url'].endswith(f'/{name}.pth') for name in with_weights)


@pytest.mark.parametrize(
    ('name', 'millions'),
    [('small_patch16_224', 22.04), ('base_patch16_384', 86.84), ('large_patch16_224', 304.26)],
)
def test_parameter_counts_are_the_published_ones(name: str, millions: float) -> None:
    with torch.device('meta'):
        model = timm.create_model(f'vit5_{name}')
    count = sum(param.numel() for param in model.parameters())
    assert count / 1e6 == pytest.approx(millions, abs=0.006)


def test_it_is_the_backbone_itself(model: ViT5Classifier) -> None:
    backbone = ViT5(TINY, 64, out_indices=(0, 2)).eval()
    backbone.load_state_dict(model.state_dict(), strict=False)
    x = torch.randn(2, 3, 70, 90)
    features = model.forward_intermediates(x, indices=[0, -1], intermediates_only=True)
    for ours, theirs in zip(features, backbone(x), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize('size', ['native', 'img96.interpolate'])
def test_logits_are_the_reference_s(shared: Path, tmp_path: Path, size: str) -> None:
    reference = load_file(shared / 'reference' / 'vit5_reference.safetensors')
    state = {key[6:]: value for key, value in reference.items() if key.startswith('state.')}
    save_file(state, tmp_path / 'bare.safetensors')
    model = ViT5Classifier(TINY, 64, num_classes=7).eval()
    model.load_pretrained(str(tmp_path / 'bare.safetensors'))
    with torch.no_grad():
        logits = model(reference[f'{size.split(".")[0]}.image'])
    torch.testing.assert_close(logits, reference[f'{size}.logits'], rtol=0, atol=1e-5)


def test_features_only_gives_maps_at_stride_16() -> None:
    model = timm.create_model(
        'vit5_tiny_patch16_224', features_only=True, out_indices=(1, 3)
    ).eval()
    assert len(model.model.blocks) == 4  # what comes after the last map is pruned
    assert model.feature_info.reduction() == [16, 16]
    assert model.feature_info.channels() == [192, 192]
    with torch.no_grad():
        maps = model(torch.randn(1, 3, 40, 56))
    assert [tuple(m.shape) for m in maps] == [(1, 192, 3, 4)] * 2
    assert all('head' not in name and name != 'norm.weight' for name, _ in model.named_parameters())


def test_tokens_and_special_tokens_agree_with_the_maps(model: ViT5Classifier) -> None:
    x = torch.randn(2, 3, 48, 80)
    maps = model.forward_intermediates(x, 2, intermediates_only=True)
    pairs = model.forward_intermediates(
        x, 2, return_prefix_tokens=True, output_fmt='NLC', intermediates_only=True
    )
    for feature_map, (patches, specials) in zip(maps, pairs, strict=True):
        torch.testing.assert_close(feature_map.flatten(2).transpose(1, 2), patches)
        assert specials.shape == (2, 1 + 4, 32)
    final, features = model.forward_intermediates(x, [0], norm=True)
    torch.testing.assert_close(final, model.forward_features(x))
    assert [tuple(f.shape) for f in features] == [(2, 32, 3, 5)]
    with pytest.raises(ValueError, match='NHWC'):
        model.forward_intermediates(x, output_fmt='NHWC')


def test_pooling_reads_cls_or_the_mean_of_the_patches(model: ViT5Classifier) -> None:
    x = torch.randn(2, 3, 64, 64)
    tokens = model.forward_features(x)
    torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), tokens[:, 0])
    model.reset_classifier(3, 'avg')
    assert model(x).shape == (2, 3)
    patches = tokens[:, 1:-4].mean(1)
    torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), patches)
    model.reset_classifier(0)
    torch.testing.assert_close(model(x), patches)
    with pytest.raises(ValueError, match='max'):
        model.reset_classifier(0, 'max')


def test_without_pooling_all_tokens_come_out(model: ViT5Classifier) -> None:
    """As timm's own ViTs do: the classifier, if any, is applied to each token."""
    x = torch.randn(2, 3, 48, 80)
    logits = model(x)
    model.global_pool = ''
    every = model(x)
    assert every.shape == (2, 1 + 3 * 5 + 4, 5)
    torch.testing.assert_close(every[:, 0], logits)
    model.reset_classifier(0)
    torch.testing.assert_close(model(x), model.forward_features(x))
    with torch.device('meta'):
        made = timm.create_model('vit5_tiny_patch16_224', num_classes=0, global_pool='')
    assert made.global_pool == ''


@pytest.mark.parametrize(
    ('size', 'wanted'), [(96, (3, 96, 96)), ((64, 128), (3, 64, 128)), (None, (3, 224, 224))]
)
@pytest.mark.parametrize('features', [False, True])
def test_img_size_is_that_of_the_transforms(size: Any, wanted: Any, features: bool) -> None:
    with torch.device('meta'):
        options = {'img_size': size, 'features_only': features}
        made = timm.create_model('vit5_tiny_patch16_224', **options)
    assert timm.data.resolve_data_config({}, model=made)['input_size'] == wanted
    assert made.state_dict()[('model.' if features else '') + 'pos_embed'].shape[1] == 14 * 14


def test_checkpointing_changes_nothing_but_memory(model: ViT5Classifier) -> None:
    x = torch.randn(1, 3, 64, 64)
    gradients = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(x).sum().backward()
        gradients.append(model.patch_embed.proj.weight.grad.clone())
    torch.testing.assert_close(*gradients)


def test_layer_decay_of_timm_finds_every_depth(model: ViT5Classifier) -> None:
    groups = param_groups_layer_decay(
        model, weight_decay=0.1, no_weight_decay_list=model.no_weight_decay(), layer_decay=0.5
    )
    scales, decays = {}, {}
    names = {id(param): name for name, param in model.named_parameters()}
    for group in groups:
        for param in group['params']:
            scales[names[id(param)]] = group['lr_scale']
            decays[names[id(param)]] = group['weight_decay']
    assert (
        scales['pos_embed'] == scales['patch_embed.proj.weight'] < scales['blocks.0.norm1.weight']
    )
    assert scales['blocks.0.norm1.weight'] * 4 == scales['blocks.2.norm1.weight']
    assert scales['head.weight'] == 1
    assert decays['cls_token'] == decays['pos_embed'] == decays['blocks.1.gamma_1'] == 0
    assert decays['blocks.1.attn.qkv.weight'] == 0.1


def test_a_classifier_of_another_size_stays_new_and_a_gray_stem_is_adapted(
    model: ViT5Classifier, tmp_path: Path
) -> None:
    torch.save({'model_ema': model.state_dict()}, tmp_path / 'file.pth')
    other = ViT5Classifier(TINY, 64, num_classes=2, in_chans=1)
    head = other.head.weight.clone()
    other.load_pretrained(str(tmp_path / 'file.pth'))
    torch.testing.assert_close(other.head.weight, head)
    stem = model.patch_embed.proj.weight.sum(1, keepdim=True)
    torch.testing.assert_close(other.patch_embed.proj.weight, stem)


def test_timm_loads_a_local_file_strictly(tmp_path: Path) -> None:
    source = timm.create_model('vit5_tiny_patch16_224', num_classes=1000)
    state = {key: value + 1 for key, value in source.state_dict().items()}
    save_file(state, tmp_path / 'good.safetensors')
    state.pop('blocks.3.gamma_1')
    save_file(state, tmp_path / 'bad.safetensors')

    def load(name: str) -> torch.nn.Module:
        overlay = {'file': str(tmp_path / name)}
        return timm.create_model(
            'vit5_tiny_patch16_224', pretrained=True, num_classes=3, pretrained_cfg_overlay=overlay
        )

    torch.testing.assert_close(load('good.safetensors').cls_token, source.cls_token + 1)
    with pytest.raises(CheckpointError, match=r'missing: blocks\.3\.gamma_1'):
        load('bad.safetensors')


def test_it_encodes_for_segmentation_models_pytorch() -> None:
    smp = pytest.importorskip('segmentation_models_pytorch', reason='comes with the extra test')
    model = smp.DPT('tu-vit5_tiny_patch16_224', encoder_weights=None, classes=3).eval()
    with torch.no_grad():
        assert model(torch.randn(1, 3, 96, 160)).shape == (1, 3, 96, 160)


def test_variants_name_sizes_of_the_backbone() -> None:
    assert {ours for ours, _, _ in VARIANTS.values()} == {'ti', 's', 'b', 'l', 'xl'}
