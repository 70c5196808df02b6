"""mmdetection's RPN after its convolutions, as ONNX operators; see ``detection_rules``.

A is the number of anchors of a place.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder

from .detection_rules import FLOAT, NOTHING, Found, apart, best, decode, halves, size, suppress


def anchors(op: OpBuilder, base: np.ndarray, stride: tuple[int, int], x: ir.Value) -> ir.Value:
    """Boxes that a level starts from, row by row, as ``AnchorGenerator``.

    Args:
        op: Where nodes are added.
        base: Anchors of the first place, (A, 4).
        stride: Pixels from place to place, (x, y).
        x: A map of the level, (B, ..., h, w).

    Returns:
        (h * w * A, 4).
    """

    def ruler(axis: int, step: int) -> ir.Value:
        count = op.Squeeze(size(op, x, axis), [0])
        return op.Mul(op.Cast(op.Range(0, count, 1), to=FLOAT), float(step))

    columns = op.Mul(op.Unsqueeze(ruler(3, stride[0]), [0, 2, 3]), [1.0, 0.0, 1.0, 0.0])
    rows = op.Mul(op.Unsqueeze(ruler(2, stride[1]), [1, 2, 3]), [0.0, 1.0, 0.0, 1.0])
    first = op.Constant(value=ir.tensor(base.astype(np.float32)))
    return op.Reshape(op.Add(op.Add(rows, columns), first), [-1, 4])  # (h, w, A, 4) before


def propose(
    op: OpBuilder,
    rpn: Any,
    logits: Sequence[ir.Value],
    deltas: Sequence[ir.Value],
    limit: ir.Value,
) -> tuple[ir.Value, Found]:
    """Boxes that may hold an object, as ``RPNHead``.

    Args:
        op: Where nodes are added.
        rpn: The head.
        logits: Of each level, (B, A, h, w).
        deltas: Of each level, (B, A * 4, h, w).
        limit: Width and height of the picture without padding, (2,).

    Returns:
        Boxes, (R, 4), and where they come from.
    """
    cfg, generator, levels = rpn.test_cfg, rpn.prior_generator, []
    for i, (logit, delta) in enumerate(zip(logits, deltas, strict=True)):
        places = anchors(op, generator.base_anchors[i].cpu().numpy(), generator.strides[i], logit)
        scores = op.Sigmoid(op.Transpose(logit, perm=[0, 2, 3, 1]))  # (B, h, w, A)
        scores = op.Reshape(scores, [0, -1])  # (B, h*w*A)
        delta = op.Reshape(op.Transpose(delta, perm=[0, 2, 3, 1]), [0, -1, 4])  # (B, h*w*A, 4)
        count = size(op, scores, 1)
        if cfg.get('nms_pre', -1) > 0:
            count = op.Min(count, [cfg.nms_pre])
        scores, order = op.TopK(scores, count, axis=1, _outputs=2)  # (B, k)
        delta = op.GatherND(delta, op.Unsqueeze(order, [2]), batch_dims=1)  # (B, k, 4)
        levels.append((scores, delta, op.Gather(places, order), op.Expand([i], count)))
    scores, delta, places, level = (
        op.Concat(*parts, axis=axis)
        for parts, axis in zip(zip(*levels, strict=True), (1, 1, 1, 0), strict=True)
    )
    boxes = decode(op, rpn.bbox_coder, places, delta, limit)  # (B, K, 4)
    if cfg.get('min_bbox_size', -1) >= 0:
        low, high = halves(op, boxes)
        shorter = op.ReduceMin(op.Sub(high, low), [2], keepdims=0)  # (B, K)
        scores = op.Where(op.Greater(shorter, float(cfg.min_bbox_size)), scores, NOTHING)
    # Levels are groups: an anchor counts in that of its own level.
    numbers = op.Constant(value=ir.tensor(np.arange(len(levels))[None, :, None]))
    grouped = op.Where(op.Equal(level, numbers), op.Unsqueeze(scores, [1]), NOTHING)
    moved = apart(op, boxes, scores, op.Cast(op.Unsqueeze(level, [1]), to=FLOAT), [1, 2])
    kept = suppress(op, moved, grouped, cfg.nms.iou_threshold, cfg.max_per_img)
    found = best(op, scores, op.Gather(kept, [0, 2], axis=1), cfg.max_per_img)
    return op.GatherND(boxes, found.places), found
