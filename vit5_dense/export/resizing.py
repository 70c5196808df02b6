"""The Resize of a test pipeline, as numbers and as nodes of a graph."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder

from ..errors import UserError

# Steps of a test pipeline that change no picture.
NEUTRAL = ('LoadImageFromNDArray', 'PackSegInputs', 'PackDetInputs')


class Resizing(NamedTuple):
    """What ``Resize`` does.

    Attributes:
        scale: Width and height to reach, or to stay within with ``keep_ratio``.
        factor: Instead of it, by how much width and height are multiplied.
        keep_ratio: Whether both sides have one factor.
    """

    scale: tuple[int, int] | None
    factor: tuple[float, float] | None
    keep_ratio: bool

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of a resized picture, at least one pixel."""
        if self.factor:
            sides = zip((width, height), self.factor, strict=True)
            target = tuple(max(1, int(side * factor + 0.5)) for side, factor in sides)
        else:
            assert self.scale
            target = self.scale
        if not self.keep_ratio:
            return target[1], target[0]
        ratio = min(max(target) / max(height, width), min(target) / min(height, width))
        return max(1, int(height * ratio + 0.5)), max(1, int(width * ratio + 0.5))

    def add_size(self, op: OpBuilder, size: ir.Value) -> ir.Value:
        """The same in a graph, in float64 as Python computes.

        Args:
            op: Where nodes are added.
            size: Height and width, (2,), int64.

        Returns:
            New height and width, (2,), int64.
        """

        def numbers(values: tuple[float, ...]) -> ir.Value:
            return op.Constant(value=ir.tensor(np.array(values, np.float64)))

        def rounded(x: ir.Value) -> ir.Value:
            return op.Max(op.Floor(op.Add(x, numbers((0.5,)))), numbers((1.0,)))

        before = op.Cast(size, to=ir.DataType.DOUBLE)
        if self.factor:
            target = rounded(op.Mul(before, numbers(self.factor[::-1])))
        else:
            assert self.scale
            target = numbers(self.scale[::-1])
        if self.keep_ratio:
            longer = op.Div(op.ReduceMax(target, [0]), op.ReduceMax(before, [0]))
            shorter = op.Div(op.ReduceMin(target, [0]), op.ReduceMin(before, [0]))
            target = rounded(op.Mul(before, op.Min(longer, shorter)))
        return op.Cast(target, to=ir.DataType.INT64)


def find_resizing(pipeline: Sequence[dict[str, Any]]) -> Resizing | None:
    """The Resize of a test pipeline; None where pictures keep their size.

    Raises:
        UserError: If a step changes pictures in another way, or in a way that is not known.
    """
    found = None
    for step in pipeline:
        kind = step['type'] if isinstance(step['type'], str) else step['type'].__name__
        kind = kind.rpartition('.')[2]
        if (
            kind == 'Resize'
            and found is None
            and step.get('interpolation', 'bilinear') == 'bilinear'
        ):
            scale, factor = step.get('scale'), step.get('scale_factor')
            if isinstance(scale, int):
                scale = (scale, scale)
            if isinstance(factor, int | float):
                factor = (float(factor), float(factor))
            found = Resizing(
                None if scale is None else (int(scale[0]), int(scale[1])),
                None if scale is not None or factor is None else (factor[0], factor[1]),
                bool(step.get('keep_ratio')),
            )
        elif kind not in NEUTRAL:
            raise UserError(
                f'test_pipeline: {kind} cannot be exported; beside one bilinear Resize only '
                f'{", ".join(NEUTRAL)} can'
            )
    if found and found.factor == (1.0, 1.0):
        return None
    return found
