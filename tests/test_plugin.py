"""The package in other people's projects: a plain config, in a folder of its own."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_run import ENV
from vit5_dense.versions import installed_distributions, is_upstream

SIZES = 'arch=dict(embed_dims=32, depth=4, num_heads=2)'
IMPORTS = "custom_imports = dict(imports=['vit5_dense'], allow_failed_imports=False)\n"
SEG = f"""
{IMPORTS}
default_scope = 'mmseg'
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', bgr_to_rgb=True, size=(64, 96)),
    backbone=dict(type='ViT5', {SIZES}),
    # mmsegmentation's own pyramid
    neck=dict(type='Feature2Pyramid', embed_dim=32, rescales=[4, 2, 1, 0.5], norm_cfg=norm_cfg),
    decode_head=dict(
        type='UPerHead',
        in_channels=[32, 32, 32, 32],
        in_index=[0, 1, 2, 3],
        channels=8,
        num_classes=5,
        norm_cfg=norm_cfg,
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
"""
DET = f"""
{IMPORTS}
default_scope = 'mmdet'
model = dict(
    type='RetinaNet',
    data_preprocessor=dict(type='DetDataPreprocessor', pad_size_divisor=16),
    backbone=dict(type='ViT5', {SIZES}, out_indices=(-1,)),
    neck=dict(type='SimplePyramid', in_channels=32, out_channels=16, strides=(4, 8, 16, 32, 64)),
    bbox_head=dict(
        type='RetinaHead',
        num_classes=3,
        in_channels=16,
        stacked_convs=1,
        feat_channels=16,
        anchor_generator=dict(
            type='AnchorGenerator', scales=[8], ratios=[1.0], strides=[4, 8, 16, 32, 64]
        ),
        bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
        loss_cls=dict(type='FocalLoss'),
        loss_bbox=dict(type='L1Loss'),
    ),
    train_cfg=dict(
        assigner=dict(type='MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.4, min_pos_iou=0),
        sampler=dict(type='PseudoSampler'),
        allowed_border=-1,
        pos_weight=-1,
    ),
    test_cfg=dict(
        nms_pre=50, score_thr=0.0, nms=dict(type='nms', iou_threshold=0.5), max_per_img=7
    ),
)
"""
RUN_SEG = """
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
cfg = Config.fromfile('plain.py')
from mmseg.registry import MODELS
from mmseg.utils import register_all_modules
register_all_modules()
init_default_scope('mmseg')
model = MODELS.build(cfg.model).eval()
model.init_weights()
data = model.data_preprocessor(dict(inputs=[torch.zeros(3, 64, 96, dtype=torch.uint8)]))
print(type(model.backbone).__module__, *model(data['inputs'], mode='tensor').shape)
"""
RUN_DET = """
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
cfg = Config.fromfile('plain.py')
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmdet.utils import register_all_modules
from mmengine.structures import InstanceData
register_all_modules()
init_default_scope('mmdet')
model = MODELS.build(cfg.model)
model.init_weights()
sample = DetDataSample(metainfo=dict(img_shape=(64, 96), ori_shape=(64, 96), scale_factor=(1, 1)))
boxes, labels = torch.tensor([[4.0, 4, 44, 44]]), torch.tensor([1])
sample.gt_instances = InstanceData(bboxes=boxes, labels=labels)
picture = torch.zeros(3, 64, 96, dtype=torch.uint8)
data = model.data_preprocessor(dict(inputs=[picture], data_samples=[sample]), True)
losses = model(**data, mode='loss')
assert all(torch.isfinite(torch.as_tensor(v)).all() for part in losses.values() for v in part)
boxes = model.eval()(**data, mode='predict')[0].pred_instances.bboxes
print(type(model.backbone).__module__, *boxes.shape)
"""
#: An import hook that stands for an mmcv without, or with broken, compiled ops.
NO_OPS = """
import sys
class NoOps:
    def find_spec(self, name, path=None, target=None):
        if name in ('mmcv.ops', 'mmcv._ext', 'mmdet'):  # mmseg imports mmdet where it is
            raise ModuleNotFoundError(f'{name}: no compiled ops', name=name)
sys.meta_path.insert(0, NoOps())
"""


def run(folder: Path, config: str, code: str) -> list[str]:
    """Words of the last line that a script prints in a folder that holds a config only."""
    (folder / 'plain.py').write_text(config)
    result = subprocess.run(
        [sys.executable, '-c', code],
        check=False,
        cwd=folder,
        env=ENV,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1].split()


@pytest.mark.parametrize('ops', ['as installed', 'no compiled ops'])
def test_a_plain_mmseg_config_builds_and_runs(tmp_path: Path, ops: str) -> None:
    if importlib.util.find_spec('mmseg') is None:
        pytest.skip('mmseg is not installed')
    if ops == 'no compiled ops' and is_upstream(installed_distributions()):
        pytest.skip('upstream mmseg itself imports mmcv.ops')
    code = RUN_SEG if ops == 'as installed' else NO_OPS + RUN_SEG
    assert run(tmp_path, SEG, code) == ['vit5_dense.backbones.vit5', '1', '5', '16', '24']


def test_a_plain_mmdet_config_builds_and_runs(tmp_path: Path) -> None:
    if importlib.util.find_spec('mmdet') is None:
        pytest.skip('mmdet is not installed')
    try:
        import mmcv._ext  # noqa: F401
    except ImportError as error:
        pytest.skip(f'no compiled ops: {error}')
    words = run(tmp_path, DET, RUN_DET)
    assert words == ['vit5_dense.backbones.vit5', '7', '4']


def test_the_package_imports_no_framework() -> None:
    """Each user needs their own only: neither mmseg nor mmdet, and of mmcv not the ops."""
    code = NO_OPS.replace(
        "name in ('mmcv.ops', 'mmcv._ext')", "name.partition('.')[0] in ('mmcv', 'mmseg', 'mmdet')"
    )
    code += """
import torch, vit5_dense
sizes = dict(embed_dims=32, depth=1, num_heads=2)
backbone, neck = vit5_dense.ViT5(arch=sizes, out_indices=(0,)), vit5_dense.SimplePyramid(32)
print(*neck(backbone(torch.zeros(1, 3, 32, 48)))[0].shape)
"""
    result = subprocess.run(
        [sys.executable, '-c', code], check=False, cwd='/', env=ENV, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ['1', '32', '8', '12']
