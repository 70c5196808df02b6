"""Around a network: bytes of pictures to its input, its output to results in the pictures' size."""

import onnx_ir as ir
from onnxscript import OpBuilder

from .resizing import Resizing


def enter(
    op: OpBuilder, pictures: ir.Value, resizing: Resizing | None, size: tuple[int, int] | None
) -> tuple[ir.Value, ir.Value | None]:
    """Pictures as a network takes them.

    Resampling is that of OpenCV on bytes: bilinear without smoothing, rounded.

    Args:
        op: Where nodes are added.
        pictures: uint8, (B, H, W, 3).
        resizing: That of the test pipeline.
        size: Height and width of all pictures; None if they differ.

    Returns:
        Resized pictures (B, 3, h, w), 0 to 255; and height and width (h, w), int64, None if they
        are those of the pictures.
    """
    bytes_first = op.Transpose(pictures, perm=[0, 3, 1, 2])
    x = op.Cast(bytes_first, to=ir.DataType.FLOAT)
    if not resizing:
        return x, None
    target = [*resizing.size(*size)] if size else resizing.add_size(op, sides(op, pictures))
    x = op.Clip(op.Round(resample(op, x, target)), 0.0, 255.0)
    return x, op.Shape(x, start=2, end=4)


def sides(op: OpBuilder, pictures: ir.Value) -> ir.Value:
    """Height and width of pictures (B, H, W, 3), int64, (2,)."""
    return op.Shape(pictures, start=1, end=3)


def resample(
    op: OpBuilder, x: ir.Value, target: ir.Value | list[int], align_corners: bool = False
) -> ir.Value:
    """Bilinear resampling.

    Args:
        op: Where nodes are added.
        x: (B, C, h, w).
        target: New height and width, int64, (2,).
        align_corners: As in torch.

    Returns:
        (B, C, *target).
    """
    shape = op.Concat(op.Shape(x, start=0, end=2), target, axis=0)
    mode = 'align_corners' if align_corners else 'half_pixel'
    return op.Resize(x, None, None, shape, mode='linear', coordinate_transformation_mode=mode)


def decide(op: OpBuilder, scores: ir.Value, threshold: float | None) -> tuple[ir.Value, ir.Value]:
    """Class numbers, as mmsegmentation decides.

    Args:
        op: Where nodes are added.
        scores: Logits, (B, classes, H, W).
        threshold: Of the probability where there is one channel; None where there are more.

    Returns:
        Class numbers (B, H, W), int32; and logits, of one channel the probability.
    """
    if threshold is None:
        found = op.ArgMax(scores, axis=1, keepdims=0)
    else:
        scores = op.Sigmoid(scores)
        found = op.Squeeze(op.Greater(scores, threshold), [1])
    return op.Cast(found, to=ir.DataType.INT32), scores


def scale_back(op: OpBuilder, boxes: ir.Value, pictures: ir.Value, resized: ir.Value) -> ir.Value:
    """Boxes in pictures from boxes in resized pictures.

    Args:
        op: Where nodes are added.
        boxes: (N, 4).
        pictures: (B, H, W, 3).
        resized: Height and width that they were resized to, (2,).
    """
    before, after = (op.Cast(size, to=ir.DataType.FLOAT) for size in (sides(op, pictures), resized))
    return op.Mul(boxes, op.Gather(op.Div(before, after), [1, 0, 1, 0]))
