"""What an exported file tells about itself."""

import json
from typing import Any

import onnx

from ..inference import Detector, Segmenter
from ..onnx_file import FORMAT, KEY


def describe(
    predictor: Segmenter | Detector, size: tuple[int, int] | None, precision: str
) -> dict[str, Any]:
    """All that a runtime has to know beside the graph.

    Args:
        predictor: The model.
        size: Height and width that every picture must have; None for any.
        precision: 'fp32', 'fp16' or 'int8'.
    """
    from .. import __version__

    common = {
        'format': FORMAT,
        'version': __version__,
        'classes': [*predictor.classes],
        'palette': [[int(value) for value in color] for color in predictor.palette],
        'size': size and [*size],
        'precision': precision,
    }
    if isinstance(predictor, Segmenter):
        return {**common, 'task': 'segmentation', 'label_offset': predictor.label_offset}
    more: dict[str, Any] = {'category_ids': [int(number) for number in predictor.category_ids]}
    if getattr(predictor.model.roi_head, 'with_mask', False):
        more['mask_threshold'] = float(predictor.model.roi_head.test_cfg.mask_thr_binary)
    return {**common, 'task': 'detection', **more}


def write(model: onnx.ModelProto, description: dict[str, Any]) -> None:
    """Put a description into a file's metadata, in place of one that is there."""
    kept = {entry.key: entry.value for entry in model.metadata_props if entry.key != KEY}
    onnx.helper.set_model_props(model, {**kept, KEY: json.dumps(description)})
