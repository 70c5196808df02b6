import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

pytest.importorskip('mmcv._ext')
pytest.importorskip('onnxruntime')
pytest.importorskip('onnxscript')

import onnx
import onnxruntime as ort
from mmdet.structures import DetDataSample
from torchvision.ops import box_iou

from conftest import randomise
from tiny import Make
from tiny_run import write_config
from vit5_dense.building import build_model
from vit5_dense.config import load_config
from vit5_dense.errors import UserError
from vit5_dense.export.detection import export_detector, general_size

EXAMPLE = torch.zeros(1, 3, 96, 160)
# Two levels and one layer of a kind, since torch's exporter takes its time for each.
SMALL = {
    'backbone.arch.depth': 1,
    'backbone.out_indices': (0,),
    'backbone.window_size': None,
    'backbone.global_attn_indexes': (),
    'neck.strides': (16, 32),
    'rpn_head.anchor_generator.strides': [16, 32],
    'roi_head.bbox_roi_extractor.featmap_strides': [16, 32],
    'roi_head.mask_roi_extractor.featmap_strides': [16, 32],
    'roi_head.mask_head.num_convs': 1,
    'test_cfg.rpn.min_bbox_size': 8,  # slivers at the border have equal scores, in any order
}
# No masks, and no padding, whose many equal scores come in any order.
FASTER = {
    'type': 'FasterRCNN',
    'roi_head.mask_head': None,
    'roi_head.mask_roi_extractor': None,
    'data_preprocessor.pad_size_divisor': 32,
}


class Patches(torch.nn.Conv2d):
    """A backbone that is exported in no time."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (super().forward(x),)


def build(folder: Path, light: bool = False, **options: Any) -> Any:
    """A tiny detector with weights that matter; ``options`` replace settings of its config."""
    cfg = load_config(str(write_config(folder, folder, detector=True)))
    changes = {**SMALL, **options}
    cfg.merge_from_dict({f'model.{name}': value for name, value in changes.items()})
    model = build_model(cfg)
    if light:
        model.backbone = Patches(3, 32, kernel_size=16, stride=16)
    torch.manual_seed(0)
    randomise(model)
    return model.eval()


def pictures(number: int, height: int, width: int, seed: int = 0) -> Tensor:
    """RGB pictures of soft colours, (number, 3, height, width), 0 to 255."""
    noise = torch.rand(number, 3, 6, 7, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(noise, size=(height, width), mode='bicubic').clamp(0, 1) * 255


def predict(model: Any, resized: Tensor) -> list[Any]:
    """What mmdetection finds in RGB pictures, one by one."""
    size = tuple(resized.shape[2:])
    meta = {'img_shape': size, 'ori_shape': size, 'scale_factor': (1.0, 1.0), 'img_id': 0}
    data = {
        'inputs': [picture.flip(0) for picture in resized],  # as BGR
        'data_samples': [DetDataSample(metainfo=meta) for _ in resized],
    }
    with torch.no_grad():
        return [sample.pred_instances for sample in model.test_step(data)]


def probabilities(model: Any, resized: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
    """What the mask head says inside boxes of one picture, before they are pasted into it."""
    inputs = model.data_preprocessor({'inputs': [resized[0].flip(0)], 'data_samples': None})
    with torch.no_grad():
        maps = model.extract_feat(inputs['inputs'])
        logits = model.roi_head._mask_forward(maps, F.pad(boxes, (1, 0)))['mask_preds']
    return logits.sigmoid()[torch.arange(len(labels)), labels]


class Exported:
    """A detector and the session of its file."""

    def __init__(self, model: Any, dynamic: bool, example: Tensor = EXAMPLE) -> None:
        self.model = model
        self.file = export_detector(model, example, dynamic)
        onnx.checker.check_model(self.file, full_check=True)
        self.session = ort.InferenceSession(self.file.SerializeToString())

    def __call__(self, resized: Tensor) -> dict[str, Tensor]:
        """Outputs by name."""
        names = [output.name for output in self.session.get_outputs()]
        values = self.session.run(None, {'resized': resized.numpy()})
        return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}

    def check(self, resized: Tensor) -> int:
        """Compare everything with mmdetection.

        Returns:
            Number of objects.
        """
        found = self(resized)
        expected = predict(self.model, resized)
        numbers = [len(each) for each in expected]
        assert found['picture'].tolist() == np.repeat(range(len(resized)), numbers).tolist()
        for i, instances in enumerate(expected):
            own = {name: value[found['picture'] == i] for name, value in found.items()}
            assert (own['scores'].diff() <= 0).all()
            overlap = box_iou(instances.bboxes, own['boxes'])
            overlap *= instances.labels[:, None] == own['labels']
            if not len(overlap):
                continue
            best, partner = overlap.max(1)
            assert best.min() >= 0.99
            assert len(partner.unique()) == len(partner)
            assert_close(own['scores'][partner], instances.scores, atol=2e-5, rtol=0)
            if 'masks' in own:
                boxes, labels = instances.bboxes, instances.labels
                masks = probabilities(self.model, resized[i : i + 1], boxes, labels)
                assert_close(own['masks'][partner], masks, atol=1e-3, rtol=0)
        return sum(numbers)


@pytest.fixture(scope='module')
def mask_rcnn(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Free batch, height and width; scores below that of the plain picture do not count."""
    model = build(tmp_path_factory.mktemp('mask'), **{'test_cfg.rcnn.max_per_img': 15})
    plain = predict(model, EXAMPLE)[0].scores.max()
    model.roi_head.test_cfg.score_thr = float(plain) + 1e-3
    return Exported(model, dynamic=True)


def test_one_file_finds_what_mmdetection_finds_at_any_size(mask_rcnn: Exported) -> None:
    """Without resampling of positions, without padding, of odd sides, padded to several steps."""
    for size in [(64, 64), (160, 160), (97, 161), (320, 230)]:
        assert mask_rcnn.check(pictures(1, *size)) > 2


def test_objects_of_a_batch_come_picture_by_picture(mask_rcnn: Exported) -> None:
    """Nothing is found in the one in the middle."""
    resized = pictures(3, 96, 160, seed=3)
    resized[1] = 0
    assert mask_rcnn.check(resized) > 4
    assert set(mask_rcnn(resized)['picture'].tolist()) == {0, 2}


def test_a_picture_without_objects_gives_empty_lists(mask_rcnn: Exported) -> None:
    """And the next one in the same session gives its objects."""
    found = mask_rcnn(EXAMPLE)
    shapes = {name: tuple(value.shape) for name, value in found.items()}
    numbers = dict.fromkeys(('scores', 'labels', 'picture'), (0,))
    assert shapes == {'boxes': (0, 4), **numbers, 'masks': (0, 28, 28)}
    assert found['labels'].dtype == found['picture'].dtype == torch.int64
    assert mask_rcnn.check(pictures(1, 96, 160)) > 2


def test_the_file_has_standard_operators_only(mask_rcnn: Exported) -> None:
    graph = mask_rcnn.file.graph
    assert {node.domain for node in graph.node} == {''}
    assert [(each.domain, each.version) for each in mask_rcnn.file.opset_import] == [('', 18)]
    assert not mask_rcnn.file.functions
    shapes = [
        (value.name, [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim])
        for value in graph.output
    ]
    lists = [(name, ['N']) for name in ('scores', 'labels', 'picture')]
    assert shapes == [('boxes', ['N', 4]), *lists, ('masks', ['N', 28, 28])]


def test_what_decides_about_boxes_can_be_told_by_its_name(mask_rcnn: Exported) -> None:
    """A conversion to half precision leaves it alone."""
    nodes = {node.op_type: node.name for node in mask_rcnn.file.graph.node}
    for kind in ('TopK', 'NonMaxSuppression', 'RoiAlign', 'ScatterND', 'Range'):
        assert nodes[kind].startswith('post/')
    assert not any('post/' in nodes[kind] for kind in ('Conv', 'ConvTranspose', 'MatMul', 'Gemm'))


def test_every_weight_is_there_once(mask_rcnn: Exported) -> None:
    weights = sum(value.numel() for value in mask_rcnn.model.state_dict().values())
    large = sum(np.prod(each.dims) for each in mask_rcnn.file.graph.initializer)
    assert large < 1.05 * weights


def test_a_file_of_one_size_asks_for_more_anchors_than_there_are(tmp_path: Path) -> None:
    """Faster R-CNN, one box for all classes, pictures as BGR."""
    options = {
        'roi_head.bbox_head.reg_class_agnostic': True,
        'roi_head.bbox_roi_extractor.featmap_strides': [16],
        'data_preprocessor.bgr_to_rgb': False,
        'test_cfg.rpn.nms_pre': 100_000,
        'test_cfg.rpn.max_per_img': 5000,
        'test_cfg.rcnn.max_per_img': -1,
        'test_cfg.rcnn.score_thr': 0.3,
    }
    exported = Exported(build(tmp_path, light=True, **FASTER, **options), dynamic=False)
    assert 'masks' not in exported(EXAMPLE)
    assert exported.check(pictures(1, 96, 160)) > 10
    shape = exported.file.graph.input[0].type.tensor_type.shape.dim
    assert [each.dim_value for each in shape] == [1, 3, 96, 160]


def test_a_cascade_refines_its_boxes(tmp_path: Path) -> None:
    """The first stage has boxes of its own for each class, the last one for all."""
    cfg = load_config(str(write_config(tmp_path, tmp_path, detector=True))).model.roi_head
    extractor, head = {**cfg.bbox_roi_extractor, 'featmap_strides': [16, 32]}, cfg.bbox_head
    options = {
        'roi_head.type': 'CascadeRoIHead',
        'roi_head.num_stages': 2,
        'roi_head.stage_loss_weights': [1, 0.5],
        'roi_head.bbox_roi_extractor': [extractor, extractor],
        'roi_head.bbox_head': [head, {**head, 'reg_class_agnostic': True}],
        'train_cfg': None,
    }
    exported = Exported(build(tmp_path, light=True, **FASTER, **options), dynamic=False)
    assert exported.check(pictures(1, 96, 160)) == 10


def test_a_picture_too_low_for_any_proposal_has_no_objects(mask_rcnn: Exported) -> None:
    assert mask_rcnn.check(pictures(1, 2, 50)) == 0


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda model: delattr(model, 'roi_head'), 'MaskRCNN cannot be exported'),
        (
            lambda model: model.roi_head.test_cfg.nms.update(type='soft_nms'),
            r"test_cfg\.rcnn\.nms=.*soft_nms.*only dict\(type='nms'",
        ),
        (
            lambda model: model.rpn_head.test_cfg.nms.update(class_agnostic=True),
            r'test_cfg\.rpn\.nms=.*class_agnostic',
        ),
        (
            lambda model: setattr(model.roi_head, 'mask_head', torch.nn.Identity()),
            r'roi_head\.mask_head Identity cannot be exported to ONNX, only FCNMaskHead',
        ),
        (
            lambda model: setattr(model.rpn_head.bbox_coder, 'add_ctr_clamp', True),
            r'rpn_head\.bbox_coder\.add_ctr_clamp=True cannot be exported to ONNX, only False',
        ),
    ],
)
def test_other_rules_are_refused(
    mask_rcnn: Exported, change: Callable[[Any], Any], message: str
) -> None:
    model = copy.deepcopy(mask_rcnn.model)
    change(model)
    with pytest.raises(UserError, match=message):
        export_detector(model, EXAMPLE, dynamic=True)


@pytest.mark.parametrize(
    ('divisor', 'window', 'expected'),
    [
        (160, None, (320, 480)),  # 20 and 30 patches; maps of 10 are too small further up
        (160, 4, (480, 800)),  # 30 and 50; 20 and 40 are whole windows
        (1024, 16, (1024, 2048)),  # all are whole windows
        (32, None, (288, 320)),  # 18 and 20; 16 are those of the pre-training
    ],
)
def test_the_traced_size_is_no_special_case(
    make_vit5: Make, divisor: int, window: int | None, expected: tuple[int, int]
) -> None:
    model = SimpleNamespace(
        backbone=make_vit5(window_size=window, pretrain_img_size=256),
        data_preprocessor=SimpleNamespace(pad_size_divisor=divisor, _channel_conversion=True),
    )
    assert general_size(model) == expected
