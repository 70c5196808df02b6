"""mmdetection's rules for boxes and what lies in them, as ONNX operators.

Every function adds nodes through ``op``, onnxscript's builder, and takes and gives values of the
graph. Letters: B pictures, K candidates of a picture, P found in a picture at most, R found in all
pictures. Boxes are left, top, right, bottom in pixels.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder

FLOAT = ir.DataType.FLOAT
NOTHING = -1.0  # a score of what does not count; those that count are 0 to 1


class Found(NamedTuple):
    """The best candidates, picture by picture, the best first.

    Attributes:
        slots: Picture and rank in it, (R, 2).
        places: Picture and number of the candidate, (R, 2).
        scores: (R,).
        ranks: P, (1,).
    """

    slots: ir.Value
    places: ir.Value
    scores: ir.Value
    ranks: ir.Value


def size(op: OpBuilder, x: ir.Value, axis: int) -> ir.Value:
    """Length of ``x`` along ``axis``, (1,), int64."""
    return op.Shape(x, start=axis, end=axis + 1)


def filled(op: OpBuilder, value: float, shape: ir.Value) -> ir.Value:
    """An fp32 tensor of ``shape``, all of one value."""
    return op.ConstantOfShape(shape, value=ir.tensor(np.array([value], np.float32)))


def halves(op: OpBuilder, boxes: ir.Value) -> Sequence[ir.Value]:
    """First and second pair of the last axis: two corners of boxes."""
    return op.Split(boxes, axis=-1, num_outputs=2, _outputs=2)


def decode(
    op: OpBuilder, coder: Any, priors: ir.Value, deltas: ir.Value, limit: ir.Value
) -> ir.Value:
    """Move and stretch boxes, as ``DeltaXYWHBBoxCoder``.

    Args:
        op: Where nodes are added.
        coder: The coder.
        priors: Boxes to start from, broadcast to the shape of ``deltas``.
        deltas: Outputs of a head, (..., 4).
        limit: Width and height of the picture, to which boxes are clipped, (2,).

    Returns:
        Boxes, (..., 4).
    """
    shift, stretch = halves(op, op.Add(op.Mul(deltas, list(coder.stds)), list(coder.means)))
    low, high = halves(op, priors)
    extent = op.Sub(high, low)
    bound = float(abs(np.log(16 / 1000)))
    reach = op.Mul(op.Mul(extent, op.Exp(op.Clip(stretch, -bound, bound))), 0.5)
    centre = op.Add(op.Mul(op.Add(low, high), 0.5), op.Mul(extent, shift))
    corners = [op.Sub(centre, reach), op.Add(centre, reach)]
    if coder.clip_border:
        corners = [op.Min(op.Max(corner, 0.0), limit) for corner in corners]
    return op.Concat(*corners, axis=-1)


def apart(
    op: OpBuilder, boxes: ir.Value, scores: ir.Value, groups: ir.Value, axes: list[int]
) -> ir.Value:
    """Boxes moved so far that those of different groups do not meet, as ``batched_nms``.

    The groups of a suppression would keep them apart as well. But far from zero fp32 is coarse (8
    thousandths of a pixel in class 80 of a picture of 1024 px), which decides about some overlaps.

    Args:
        op: Where nodes are added.
        boxes: (B, ..., 4).
        scores: (B, ...).
        groups: Numbers of the groups, fp32; broadcast to (B, ..., 1).
        axes: Those of ``boxes`` without the first.
    """
    counts = op.GreaterOrEqual(op.Unsqueeze(scores, [-1]), 0.0)
    farthest = op.ReduceMax(op.Where(counts, boxes, 0.0), axes)  # (B, 1, ...)
    return op.Add(boxes, op.Mul(groups, op.Add(farthest, 1.0)))


def suppress(op: OpBuilder, boxes: ir.Value, scores: ir.Value, iou: float, most: int) -> ir.Value:
    """Which boxes no better one of their group covers.

    Args:
        op: Where nodes are added.
        boxes: (batch, n, 4).
        scores: (batch, groups, n).
        iou: Overlap up to which two boxes stay.
        most: Boxes of a group that stay at most.

    Returns:
        Batch, group and number, (m, 3).
    """
    return op.NonMaxSuppression(boxes, scores, [most], [iou], [NOTHING / 2])


def best(op: OpBuilder, scores: ir.Value, kept: ir.Value, most: int) -> Found:
    """The best of the candidates that were kept.

    Args:
        op: Where nodes are added.
        scores: Of all candidates, (B, K), 0 to 1.
        kept: Picture and number of those kept, (n, 2).
        most: Found in a picture at most.
    """
    nothing = filled(op, NOTHING, op.Shape(scores))
    left = op.ScatterND(nothing, kept, op.GatherND(scores, kept))  # (B, K)
    ranks = op.Min(size(op, scores, 1), [most])
    top, order = op.TopK(left, ranks, axis=1, _outputs=2)  # (B, P)
    slots = op.Transpose(op.NonZero(op.GreaterOrEqual(top, 0.0)), perm=[1, 0])
    number = op.Unsqueeze(op.GatherND(order, slots), [1])  # (R, 1)
    places = op.Concat(op.Gather(slots, [0], axis=1), number, axis=1)
    return Found(slots, places, op.GatherND(top, slots), ranks)


def pool(
    op: OpBuilder, extractor: Any, maps: Sequence[ir.Value], boxes: ir.Value, pictures: ir.Value
) -> ir.Value:
    """What lies in boxes, each at the level that fits its size, as ``SingleRoIExtractor``.

    Args:
        op: Where nodes are added.
        extractor: The extractor.
        maps: Levels of the pyramid, (B, channels, h, w).
        boxes: (R, 4).
        pictures: Their pictures, (R,).

    Returns:
        (R, channels, side, side).
    """

    def align(level: int, boxes: ir.Value, pictures: ir.Value) -> ir.Value:
        layer = extractor.roi_layers[level]
        return op.RoiAlign(
            maps[level],
            boxes,
            pictures,
            output_height=layer.output_size[0],
            output_width=layer.output_size[1],
            sampling_ratio=layer.sampling_ratio,
            spatial_scale=float(layer.spatial_scale),
            coordinate_transformation_mode='half_pixel' if layer.aligned else 'output_half_pixel',
        )

    levels = len(extractor.roi_layers)
    if levels == 1:
        return align(0, boxes, pictures)
    low, high = halves(op, boxes)
    area = op.ReduceProd(op.Sub(high, low), [1])  # (R, 1)
    scale = op.Add(op.Div(op.Sqrt(area), float(extractor.finest_scale)), 1e-6)
    # floor(log2(scale)) from 0 to the last level, with no logarithm to be rounded.
    passed = op.GreaterOrEqual(scale, [2.0**i for i in range(1, levels)])
    level = op.ReduceSum(op.Cast(passed, to=ir.DataType.INT64), [1], keepdims=0)  # (R,)
    chosen = [op.Squeeze(op.NonZero(op.Equal(level, [i])), [0]) for i in range(levels)]
    features = op.Concat(
        *(
            align(i, op.Gather(boxes, each), op.Gather(pictures, each))
            for i, each in enumerate(chosen)
        ),
        axis=0,
    )
    order = op.Unsqueeze(op.Concat(*chosen, axis=0), [1])  # (R, 1)
    return op.ScatterND(filled(op, 0.0, op.Shape(features)), order, features)
