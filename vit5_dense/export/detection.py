"""A two-stage detector of mmdetection as one ONNX graph of standard operators.

torch exports the parts whose shapes follow from the size of the picture: preprocessing, backbone,
neck and the layers of every head. What lies between them depends on what is in the picture (how
many proposals, how many objects) and is written as ONNX operators in ``detection_rules``,
``detection_rpn`` and ``detection_roi``. torch's exporters do not take it through: the new one gives
RoiAlign a wrong number of inputs (pytorch#175732); the old one freezes scale factors
(pytorch#33443) and every size that a model reads as a number.
"""

from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnxscript import GraphBuilder
from torch import Tensor, nn

from .detection_checks import check_exportable, stages
from .detection_parts import mark, trace
from .detection_roi import RoIHeads
from .detection_rpn import propose
from .detection_rules import size
from .preprocess import Normalize

POST = 'post'  # begins the names of all nodes that decide about boxes, which need fp32


class Maps(nn.Module):
    """A detector up to the outputs of the RPN's layers.

    Args:
        model: The detector.
        levels: How many levels of the pyramid boxes are pooled from.
    """

    def __init__(self, model: Any, levels: int) -> None:
        super().__init__()
        self.normalize = Normalize(model.data_preprocessor)
        self.model = model
        self.levels = levels

    def forward(self, resized: Tensor) -> tuple[Tensor, ...]:
        """Levels to pool from, then logits of all levels, then deltas of all levels.

        Args:
            resized: RGB pictures, (B, 3, h, w), 0 to 255.
        """
        maps = self.model.extract_feat(self.normalize(resized))
        logits, deltas = self.model.rpn_head(maps)
        return (*maps[: self.levels], *logits, *deltas)


def general_size(model: Any) -> tuple[int, int]:
    """Height and width in pixels of a picture that goes through a backbone the most general way.

    Exporters record the way that the example takes. It must not be one without resampling of
    positions, without padding of windows or with a map of one pixel, unless all pictures take it.
    """
    backbone = model.backbone
    patch = getattr(backbone, 'patch_size', 16)
    step = max(patch, Normalize(model.data_preprocessor).divisor)
    trained = getattr(backbone, 'pretrain_grid', ())
    windows = [block.attn.window_size or 1 for block in getattr(backbone, 'blocks', [])]
    window = max(windows, default=1)
    sides = (count * step for count in range(1, 64 * patch * window))
    grids = {side: -(-side // patch) for side in sides}
    large = [side for side, grid in grids.items() if grid > 16 and grid not in trained]
    odd = [side for side in large if grids[side] % window]
    height, width, *_ = odd or large
    return height, width


def export_detector(model: Any, example: Tensor, dynamic: bool, opset: int = 18) -> onnx.ModelProto:
    """A detector as an ONNX graph that computes what mmdetection predicts.

    Its input ``resized``, (B, 3, h, w), holds RGB pictures, 0 to 255, as the test pipeline leaves
    them. Its outputs list the objects of all pictures, N >= 0, picture by picture, the most certain
    first: ``boxes`` (N, 4) in pixels of ``resized``, ``scores`` (N,), ``labels`` (N,), ``picture``
    (N,), the number in the batch, and, if there is a mask head, ``masks`` (N, side, side),
    probabilities inside the box.

    Args:
        model: A detector of mmdetection in evaluation, on the CPU.
        example: Pictures, (B, 3, h, w).
        dynamic: Leave B, h and w free; else they are those of the example.
        opset: Version of the standard operators, from 18.

    Raises:
        UserError: If the model has a part that is computed by other rules than those known here.
    """
    check_exportable(model)
    heads, strides = model.roi_head, model.rpn_head.prior_generator.strides
    kinds = ['bbox_roi_extractor'] + ['mask_roi_extractor'] * heads.with_mask
    levels = max(len(each.roi_layers) for kind in kinds for each in stages(getattr(heads, kind)))
    if dynamic:
        example = torch.zeros(2, 3, *general_size(model))
    whole = trace(Maps(model, levels), example, [0, 2, 3] if dynamic else [], opset)
    graph = whole.graph
    resized, outputs = graph.inputs[0], list(graph.outputs)
    resized.name = 'resized'
    graph.outputs.clear()
    mark('rpn/out', outputs[levels:])
    logits, deltas = outputs[levels : -len(strides)], outputs[-len(strides) :]

    builder = GraphBuilder(graph)
    builder.push_module(POST)
    op = builder.op
    limit = op.Concat(size(op, resized, 3), size(op, resized, 2), axis=0)
    limit = op.Cast(limit, to=ir.DataType.FLOAT)
    proposals, found = propose(op, model.rpn_head, logits, deltas, limit)
    roi = RoIHeads(op, heads, outputs[:levels], limit, opset)
    objects = roi.detect(proposals, found.slots, (size(op, resized, 0), found.ranks))
    for name, value in objects._asdict().items():
        builder.add_output(value, name)
    if heads.with_mask:
        builder.add_output(roi.masks(objects), 'masks')
    for value in graph.outputs:
        value.shape = ir.Shape(['N', *list(value.shape or [])[1:]])
    return ir.to_proto(whole)
