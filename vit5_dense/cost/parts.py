"""Time of a whole model by part."""

import importlib
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from mmengine.model import BaseModel
from torch import nn

from .measure import synchronize

# Parts of segmentors and detectors whose forward pass is timed.
PARTS = (
    'backbone', 'neck', 'decode_head', 'rpn_head', 'roi_head.bbox_roi_extractor',
    'roi_head.bbox_head', 'roi_head.mask_roi_extractor', 'roi_head.mask_head',
)  # fmt: skip


def sample_of(scope: str, height: int, width: int) -> Any:
    """A data sample of a picture, with what heads ask of it."""
    kind = {'mmseg': 'SegDataSample', 'mmdet': 'DetDataSample'}[scope]
    sample = getattr(importlib.import_module(f'{scope}.structures'), kind)()
    shape = (height, width)
    sample.set_metainfo(
        {
            'img_id': 0,
            'img_path': '',
            'img_shape': shape,
            'ori_shape': shape,
            'scale_factor': (1.0, 1.0),
            'batch_input_shape': shape,
            'pad_shape': shape,
        }
    )
    return sample


@contextmanager
def timed(module: nn.Module, device: torch.device, seconds: list[float]) -> Iterator[None]:
    """Add up in ``seconds[-1]`` how long the forward passes of a module take."""
    forward = module.forward

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        synchronize(device)
        begin = time.perf_counter()
        output = forward(*args, **kwargs)
        synchronize(device)
        seconds[-1] += time.perf_counter() - begin
        return output

    module.forward = wrapper
    try:
        yield
    finally:
        del module.forward


def time_parts(
    model: BaseModel, scope: str, side: int, rounds: int, warmup: int
) -> list[dict[str, Any]]:
    """Seconds that each part of a model takes for one random picture.

    Args:
        model: A segmentor or detector in evaluation.
        scope: 'mmseg' or 'mmdet'.
        side: Side of the picture.
        rounds: Timed runs.
        warmup: Runs before, not timed.

    Returns:
        A row for each part, one for the rest, such as resampling or non-maximum suppression, and
        the total: ``name``, ``seconds`` of the rounds, their ``median``, ``share`` of the total.
    """
    device = next(model.parameters()).device
    picture = torch.randint(0, 256, (3, side, side), dtype=torch.uint8)
    modules = dict(model.named_modules())
    seconds: dict[str, list[float]] = {name: [] for name in PARTS if name in modules}
    total: list[float] = []
    with ExitStack() as stack:
        for name, times in seconds.items():
            stack.enter_context(timed(modules[name], device, times))
        for _ in range(warmup + rounds):
            for times in seconds.values():
                times.append(0.0)
            batch = {'inputs': [picture], 'data_samples': [sample_of(scope, side, side)]}
            begin = time.perf_counter()
            with torch.inference_mode():
                model.test_step(batch)
            synchronize(device)
            total.append(time.perf_counter() - begin)
    columns = {name: times[warmup:] for name, times in seconds.items()}
    whole = total[warmup:]
    columns['rest'] = [a - sum(parts) for a, *parts in zip(whole, *columns.values(), strict=True)]
    columns['total'] = whole
    return [
        {
            'name': name,
            'seconds': times,
            'median': statistics.median(times),
            'share': statistics.median(times) / statistics.median(whole),
        }
        for name, times in columns.items()
    ]
