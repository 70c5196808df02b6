"""Pooling to a fixed size in operators that know no adaptive pooling."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def averages(outputs: int, inputs: int) -> Tensor:
    """The matrix by which ``nn.AdaptiveAvgPool2d`` averages along one axis.

    Args:
        outputs: Number of places after.
        inputs: Number of places before.

    Returns:
        (outputs, inputs), whose rows add up to 1: place i is the mean of those from
        floor(i * inputs / outputs) to ceil((i + 1) * inputs / outputs) - 1.
    """
    i, j = torch.arange(outputs)[:, None], torch.arange(inputs)
    first = torch.div(i * inputs, outputs, rounding_mode='trunc')
    end = torch.div((i + 1) * inputs + outputs - 1, outputs, rounding_mode='trunc')
    inside = (first <= j) & (j < end)
    return inside.float() / (end - first)


class MatrixPool(nn.Module):
    """``nn.AdaptiveAvgPool2d`` as two matrix products.

    Args:
        size: Height and width of the result.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) to (B, C, *size)."""
        if self.size == (1, 1):
            return x.mean((2, 3), keepdim=True)
        rows, columns = (averages(*pair) for pair in zip(self.size, x.shape[2:], strict=True))
        return rows @ x @ columns.T


@contextmanager
def without_adaptive_pooling(model: nn.Module) -> Iterator[None]:
    """Have a model pool by ``MatrixPool`` for a while."""
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.AdaptiveAvgPool2d)
    ]
    try:
        for parent, name, child in places:
            size: Any = child.output_size
            setattr(parent, name, MatrixPool((size, size) if isinstance(size, int) else size))
        yield
    finally:
        for parent, name, child in places:
            setattr(parent, name, child)
