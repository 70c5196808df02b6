import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope
from torch import nn

from tiny_run import ENV, REPO
from vit5_dense.config import replace_type
from vit5_dense.datasets import shapes

CONFIGS = REPO / 'configs'
LEAVES = {path.stem: path for path in sorted(CONFIGS.glob('*.py'))}
MODEL_BASES = {path.stem: path for path in sorted(CONFIGS.glob('_base_/models/*.py'))}
LINK = 'https://huggingface.co/FengWang3211/ViT-5/resolve/main/vit5_'
#: Every published file: size and pixels of pre-training.
FILES = {
    'small_patch16_224': ('s', 224),
    'base_patch16_224': ('b', 224),
    'base_patch16_384': ('b', 384),
    'large_patch16_224': ('l', 224),
    'large_patch16_384': ('l', 384),
}
SEG_LEAVES = [name for name in LEAVES if name.startswith('upernet')]
DET_LEAVES = [name for name in LEAVES if 'rcnn' in name]
each_leaf = pytest.mark.parametrize('name', LEAVES)
each_seg_leaf = pytest.mark.parametrize('name', SEG_LEAVES)
each_det_leaf = pytest.mark.parametrize('name', DET_LEAVES)


def read(name: str) -> Config:
    return Config.fromfile(LEAVES[name])


def steps(pipeline: Any) -> list[ConfigDict]:
    """All transforms of a pipeline, also those within others."""
    if isinstance(pipeline, list | tuple):
        return [step for item in pipeline for step in steps(item)]
    return [pipeline, *steps(pipeline.get('transforms', []))]


def build_meta(cfg: ConfigDict, framework: str = 'mmseg') -> nn.Module:
    """The model without memory for its weights: sizes are real, values are not."""
    pytest.importorskip(framework)
    registry = importlib.import_module(f'{framework}.registry')
    importlib.import_module(f'{framework}.utils').register_all_modules(init_default_scope=False)
    cfg = ConfigDict(cfg)
    replace_type(cfg, 'SyncBN', 'BN')
    with DefaultScope.overwrite_default_scope(framework), torch.device('meta'):
        return registry.MODELS.build(cfg).eval()


def maps_of(model: nn.Module, side: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs of neck and heads for one square picture."""
    levels = []
    handle = model.neck.register_forward_hook(lambda module, args, out: levels.extend(out))
    with torch.device('meta'):
        picture = torch.zeros(1, 3, side, side)
    features = model.extract_feat(picture)
    handle.remove()
    return levels, [model.decode_head(features), model.auxiliary_head(features)]


def outputs_of_detector(model: nn.Module, cfg: ConfigDict, side: int) -> list[torch.Tensor]:
    """All that the heads give, with sizes checked against the pyramid and the anchors."""
    with torch.device('meta'):
        levels = model.extract_feat(torch.zeros(1, 3, side, side))
        strides = list(cfg.rpn_head.anchor_generator.strides)
        assert [side // level.shape[-1] for level in levels] == strides
        rpn = model.rpn_head(levels)
        number = len(model.rpn_head.anchor_generator.base_anchors[0])
        for scores, stride in zip(rpn[0], strides, strict=True):
            assert scores.shape[1:] == (number, side // stride, side // stride)
        roi = cfg.roi_head
        for extractor in (roi.bbox_roi_extractor, roi.mask_roi_extractor):
            assert list(extractor.featmap_strides) == strides[: len(extractor.featmap_strides)]
            assert extractor.out_channels == levels[0].shape[1]
        heads = model.roi_head.bbox_head
        boxes = []
        for head in heads if isinstance(heads, nn.ModuleList) else [heads]:
            boxes += head(torch.zeros(2, levels[0].shape[1], 7, 7))
            assert boxes[-2].shape == (2, head.num_classes + 1)
        heads = model.roi_head.mask_head
        masks = []
        for head in heads if isinstance(heads, nn.ModuleList) else [heads]:
            masks.append(head(torch.zeros(2, levels[0].shape[1], 14, 14)))
            assert masks[-1].shape == (2, head.num_classes, 28, 28)
    return [*rpn[0], *rpn[1], *boxes, *masks]


def test_the_recipes_are_there() -> None:
    names = {f'upernet_vit5_{arch}_ade20k' for arch in 'sbl'} | {'upernet_vit5_s_ade20k_light'}
    names |= {f'mask_rcnn_vit5_{arch}_coco' for arch in 'sbl'}
    names |= {f'mask_rcnn_vit5_{arch}_coco_3x' for arch in 'sb'}
    names |= {f'cascade_mask_rcnn_vit5_{arch}_coco' for arch in 'bl'}
    names |= {'mask_rcnn_vit5_s_fpn_coco_3x', 'upernet_vit5_ti_shapes', 'mask_rcnn_vit5_ti_shapes'}
    assert names == set(LEAVES)
    assert MODEL_BASES


@pytest.mark.parametrize('framework', ['mmseg', 'mmdet'])
def test_every_config_and_its_backbone_are_found_from_the_root_folder(framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f'{framework} is not installed')
    code = f"""
import sys, torch
from mmengine.config import Config
from {framework}.registry import MODELS
for path in sys.argv[1:]:
    cfg = Config.fromfile(path)
    with torch.device('meta'):
        print(type(MODELS.build(cfg.model.backbone)).__name__)
"""
    result = subprocess.run(
        [sys.executable, '-c', code, *map(str, LEAVES.values())],
        check=False,
        cwd='/',
        env=ENV,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-len(LEAVES) :] == ['ViT5'] * len(LEAVES)


@pytest.mark.parametrize('name', MODEL_BASES)
def test_a_model_base_runs_on_its_own(name: str) -> None:
    cfg = Config.fromfile(MODEL_BASES[name])
    if cfg.model.type != 'EncoderDecoder':
        outputs_of_detector(build_meta(cfg.model, 'mmdet'), cfg.model, 320)
        return
    model = build_meta(cfg.model)
    heads = maps_of(model, 512)[1]
    classes = cfg.model.decode_head.num_classes
    assert [tuple(out.shape) for out in heads] == [(1, classes, 128, 128), (1, classes, 32, 32)]


@each_seg_leaf
def test_strides_and_sizes_of_a_whole_model_agree(name: str) -> None:
    cfg = read(name)
    side = cfg.crop_size[0]
    model = build_meta(cfg.model)
    levels, heads = maps_of(model, side)
    assert model.neck.in_stride == model.backbone.patch_size
    assert [side // level.shape[-1] for level in levels] == list(model.neck.strides)
    assert {level.shape[1] for level in levels} == {model.backbone.embed_dims}
    assert heads[0].shape == (1, cfg.model.decode_head.num_classes, side // 4, side // 4)


@each_seg_leaf
def test_every_parameter_has_a_gradient_and_a_group(name: str) -> None:
    """Hence no recipe needs find_unused_parameters."""
    cfg = read(name)
    model = build_meta(cfg.model)
    sum(out.sum() for out in maps_of(model, cfg.crop_size[0])[1]).backward()
    assert [key for key, param in model.named_parameters() if param.grad is None] == []
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    assert sum(len(group['params']) for group in groups) == len(list(model.parameters()))
    assert 'find_unused_parameters' not in cfg


@each_seg_leaf
def test_crop_preprocessor_and_test_window_have_one_size(name: str) -> None:
    cfg = read(name)
    crops = [step for step in steps(cfg.train_dataloader.dataset.pipeline) if 'Crop' in step.type]
    assert [crop.crop_size for crop in crops] == [cfg.crop_size]
    assert cfg.model.data_preprocessor.size == cfg.crop_size
    test_cfg = dict(cfg.model.test_cfg)
    if test_cfg.pop('mode') == 'slide':
        assert test_cfg.pop('crop_size') == cfg.crop_size
        stride = test_cfg.pop('stride')
        assert all(0 < s <= size for s, size in zip(stride, cfg.crop_size, strict=True))
    assert test_cfg == {}, 'keys of a base that have no effect'


@each_seg_leaf
def test_classes_and_labels_agree_with_the_data(name: str) -> None:
    pytest.importorskip('mmseg.datasets')
    from mmseg.registry import DATASETS

    cfg = read(name)
    for split in ('train', 'val', 'test'):
        data = cfg[f'{split}_dataloader'].dataset
        known = DATASETS.get(data.type).METAINFO
        classes = {**known, **data.get('metainfo', {})}['classes']
        assert len(classes) == cfg.model.decode_head.num_classes
        assert len(classes) == cfg.model.auxiliary_head.num_classes
        # both sets label from 1; ADE20KDataset does so by itself
        assert data.type == 'ADE20KDataset' or data.reduce_zero_label
        for pipeline in (data.pipeline, cfg.tta_pipeline):
            loads = [step for step in steps(pipeline) if step.type == 'LoadAnnotations']
            assert len(loads) == 1
            assert loads[0].get('reduce_zero_label') is not False


@each_det_leaf
def test_every_parameter_of_a_detector_has_a_gradient_and_a_group(name: str) -> None:
    """Hence no recipe needs find_unused_parameters."""
    cfg = read(name)
    model = build_meta(cfg.model, 'mmdet')
    sum(out.sum() for out in outputs_of_detector(model, cfg.model, 320)).backward()
    assert [key for key, param in model.named_parameters() if param.grad is None] == []
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    assert sum(len(group['params']) for group in groups) == len(list(model.parameters()))
    assert 'find_unused_parameters' not in cfg


@each_det_leaf
def test_pictures_of_a_detector_are_padded_to_whole_windows_of_one_scale(name: str) -> None:
    cfg = read(name)
    divisor = cfg.model.data_preprocessor.pad_size_divisor
    backbone = cfg.model.backbone
    crops = {
        step.crop_size
        for step in steps(cfg.train_dataloader.dataset.pipeline)
        if step.type == 'RandomCrop' and step.crop_type == 'absolute'
    }
    if name.endswith('3x'):  # sizes of many kinds, padding is masked
        assert (crops, divisor, backbone.window_size) == (set(), 32, 14)
        return
    assert crops == {(divisor, divisor)}, 'train and test have one scale of positions'
    assert backbone.window_size is None or divisor // 16 % backbone.window_size == 0
    for step in steps([cfg.test_dataloader.dataset.pipeline, cfg.tta_pipeline]):
        if step.type == 'Resize' and 'scale' in step:
            assert max(step.scale) <= divisor


@each_det_leaf
def test_labels_and_scores_of_a_detector_are_of_the_same_classes(name: str) -> None:
    pytest.importorskip('mmdet.datasets')
    from mmdet.registry import DATASETS

    cfg = read(name)
    heads = cfg.model.roi_head.bbox_head
    heads = heads if isinstance(heads, list) else [heads]
    numbers = {head.num_classes for head in [*heads, cfg.model.roi_head.mask_head]}
    for split in ('train', 'val', 'test'):
        data = cfg[f'{split}_dataloader'].dataset
        assert data.type == 'ViT5CocoDataset'
        meta = {**DATASETS.get(data.type).METAINFO, **data.get('metainfo', {})}
        assert {len(meta['classes']), len(meta['palette'])} == numbers
    assert cfg.val_evaluator.type == cfg.test_evaluator.type == 'ViT5CocoMetric'
    assert cfg.val_dataloader.dataset.test_mode


@pytest.mark.parametrize('name', [name for name in DET_LEAVES if name.endswith('coco')])
def test_the_coco_recipes_hold_what_was_agreed(name: str) -> None:
    cfg = read(name)
    arch = cfg.model.backbone.arch
    assert build_meta(cfg.model, 'mmdet').neck.strides == (4, 8, 16, 32, 64)
    blocks = (5, 11, 17, 23) if arch == 'l' else (2, 5, 8, 11)
    assert cfg.model.backbone.global_attn_indexes == blocks
    assert cfg.model.backbone.out_indices == blocks[-1:]
    assert cfg.model.backbone.drop_path_rate == {'s': 0.1, 'b': 0.1, 'l': 0.4}[arch]
    assert cfg.model.rpn_head.num_convs == 2
    heads = cfg.model.roi_head.bbox_head
    for head in heads if isinstance(heads, list) else [heads]:
        assert head.type == 'Shared4Conv1FCBBoxHead'
        assert head.norm_cfg.type == 'ViT5LayerNorm2d'
    assert cfg.model.roi_head.mask_head.norm_cfg.type == 'ViT5LayerNorm2d'
    assert cfg.train_cfg.max_iters * 64 == 118000 * 100
    assert cfg.train_dataloader.batch_size * 8 == cfg.auto_scale_lr.base_batch_size == 64


def test_the_detection_demo_has_the_things_among_the_embedded_scenes() -> None:
    cfg = read('mask_rcnn_vit5_ti_shapes')
    first = len(shapes.CLASSES) - len(shapes.THING_CLASSES)
    for split in ('train', 'val', 'test'):
        meta = cfg[f'{split}_dataloader'].dataset.metainfo
        assert tuple(meta.classes) == shapes.THING_CLASSES
        assert tuple(map(tuple, meta.palette)) == shapes.PALETTE[first:]


@each_leaf
def test_the_schedule_is_without_gaps_and_ends_with_the_training(name: str) -> None:
    cfg = read(name)
    warm_up, main = cfg.param_scheduler
    assert warm_up.begin == 0
    # milestones count from the start of their part: it must begin with the training
    assert main.begin == (0 if main.type == 'MultiStepLR' else warm_up.end)
    assert main.end == cfg.train_cfg.max_iters
    assert max(main.get('milestones', [0])) < main.end
    assert cfg.train_cfg.max_iters % cfg.train_cfg.val_interval == 0


@each_leaf
def test_a_leaf_is_a_short_difference(name: str) -> None:
    assert len(LEAVES[name].read_text().splitlines()) <= 40


@each_leaf
def test_the_file_to_start_from_is_of_the_size_and_grid_of_the_backbone(name: str) -> None:
    backbone = read(name).model.backbone
    init = backbone.get('init_cfg')
    if init is None:
        assert backbone.arch == 'ti', 'only tiny has no published file'
        return
    assert init.type == 'Pretrained'
    assert init.checkpoint.startswith(LINK)
    file = init.checkpoint.removeprefix(LINK).removesuffix('.pth')
    assert FILES[file] == (backbone.arch, backbone.get('pretrain_img_size', 224))


@pytest.mark.parametrize('arch', 'sbl')
def test_the_ade20k_recipes_hold_what_was_agreed(arch: str) -> None:
    cfg = read(f'upernet_vit5_{arch}_ade20k')
    assert cfg.model.backbone.pretrain_img_size == {'s': 224, 'b': 384, 'l': 384}[arch]
    taps = (5, 11, 17, 23) if arch == 'l' else (2, 5, 8, 11)
    assert build_meta(cfg.model).backbone.out_indices == taps
    assert cfg.crop_size == (512, 512)
    assert cfg.model.test_cfg.mode == 'slide'
    assert cfg.train_cfg.max_iters == 160000
    warm_up, poly = cfg.param_scheduler
    assert (warm_up.type, warm_up.end, poly.type) == ('LinearLR', 1500, 'PolyLR')
    assert cfg.optim_wrapper.optimizer.type == 'AdamW'
    assert cfg.optim_wrapper.paramwise_cfg.layer_decay_rate < 1
    assert cfg.train_dataloader.batch_size * 8 == cfg.auto_scale_lr.base_batch_size == 16


def test_the_demo_has_the_classes_and_colours_of_the_embedded_scenes() -> None:
    cfg = read('upernet_vit5_ti_shapes')
    for split in ('train', 'val', 'test'):
        meta = cfg[f'{split}_dataloader'].dataset.metainfo
        assert tuple(meta.classes) == shapes.CLASSES
        assert tuple(map(tuple, meta.palette)) == shapes.PALETTE


def test_recipes_are_bases_of_configs_in_any_folder(tmp_path: Path) -> None:
    recipe = 'upernet_vit5_s_ade20k.py'
    code = (
        'import vit5_dense; from mmengine.config import Config; from mmengine.hub import get_config'
    )
    expected = []
    for i, name in enumerate((recipe, f'vit5/{recipe}')):
        (tmp_path / f'{i}.py').write_text(
            f"_base_ = ['vit5_dense::{name}']\nmodel = dict(backbone=dict(arch='b'))\n"
        )
        code += f"""
whole = get_config('vit5_dense::{name}')
mine = Config.fromfile('{i}.py')
print(whole.model.backbone.arch, mine.model.backbone.arch, mine.train_cfg == whole.train_cfg)
"""
        expected += ['s', 'b', 'True']
    result = subprocess.run(
        [sys.executable, '-c', code],
        check=False,
        cwd=tmp_path,
        env=ENV,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == expected
