"""Which detectors of mmdetection can be exported."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from ..errors import UserError

KINDS = {
    'rpn_head': ('RPNHead',),
    'rpn_head.prior_generator': ('AnchorGenerator',),
    'rpn_head.bbox_coder': ('DeltaXYWHBBoxCoder',),
    'roi_head': ('StandardRoIHead', 'CascadeRoIHead'),
    'roi_head.bbox_roi_extractor': ('SingleRoIExtractor',),
    'roi_head.bbox_roi_extractor.roi_layers.0': ('RoIAlign',),
    'roi_head.bbox_head': ('ConvFCBBoxHead', 'Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead'),
    'roi_head.bbox_head.bbox_coder': ('DeltaXYWHBBoxCoder',),
}
MASK_KINDS = {
    'roi_head.mask_roi_extractor': ('SingleRoIExtractor',),
    'roi_head.mask_roi_extractor.roi_layers.0': ('RoIAlign',),
    'roi_head.mask_head': ('FCNMaskHead',),
}
# Settings for which mmdetection has a rule of its own, and the value that is exported.
SETTINGS = {
    'rpn_head.use_sigmoid_cls': True,
    'rpn_head.bbox_coder.add_ctr_clamp': False,
    'roi_head.with_shared_head': False,
    'roi_head.bbox_head.with_cls': True,
    'roi_head.bbox_head.with_reg': True,
    'roi_head.bbox_head.custom_cls_channels': False,
    'roi_head.bbox_head.bbox_coder.add_ctr_clamp': False,
    'roi_head.bbox_roi_extractor.roi_layers.0.pool_mode': 'avg',
}


def stages(head: Any) -> list[Any]:
    """The parts of a cascade, or the only one."""
    return list(head) if isinstance(head, nn.ModuleList) else [head]


def find(model: Any, path: str) -> Iterator[Any]:
    """What a model has under a dotted name, for each stage of a cascade."""
    first, _, rest = path.partition('.')
    value = model[int(first)] if first.isdigit() else getattr(model, first, None)
    for each in stages(value) if first != 'roi_layers' else [value]:
        if rest:
            yield from find(each, rest)
        else:
            yield each


def check_exportable(model: Any) -> None:
    """Find what the exported graph would compute differently.

    Args:
        model: A detector of mmdetection.

    Raises:
        UserError: With the part or setting that is not supported.
    """
    if getattr(model, 'rpn_head', None) is None or getattr(model, 'roi_head', None) is None:
        raise UserError(
            f'{type(model).__name__} cannot be exported to ONNX: of the detectors, only Faster, '
            'Mask and Cascade R-CNN can (an rpn_head and a roi_head)'
        )
    kinds = {**KINDS, **(MASK_KINDS if model.roi_head.with_mask else {})}
    for path, names in kinds.items():
        for part in find(model, path):
            if type(part).__name__ not in names:
                raise UserError(
                    f'model.{path} {type(part).__name__} cannot be exported to ONNX, only '
                    + ', '.join(names)
                )
    for path, wanted in SETTINGS.items():
        for value in find(model, path):
            if value != wanted:
                raise UserError(f'model.{path}={value} cannot be exported to ONNX, only {wanted}')
    for name, cfg in (('rpn', model.rpn_head.test_cfg), ('rcnn', model.roi_head.test_cfg)):
        extra = set(cfg.nms) - {'type', 'iou_threshold', 'split_thr'}
        if cfg.nms.get('type', 'nms') != 'nms' or extra:
            raise UserError(
                f'model.test_cfg.{name}.nms={dict(cfg.nms)} cannot be exported to ONNX, only '
                "dict(type='nms', iou_threshold=...)"
            )
