"""An exported detector's layers against the model's, whatever is found in a picture."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor

from ..inference import Detector, Segmenter
from .detection_checks import stages
from .detection_parts import MARK


def session_for(model: onnx.ModelProto, outputs: Sequence[str]) -> onnxruntime.InferenceSession:
    """A session of a changed model in memory, which gives these values."""
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is raised; what nothing uses any more is no news
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=['CPUExecutionProvider']
    )


def with_layers(path: Path) -> onnxruntime.InferenceSession:
    """A session of a detector's file that gives the values that the exporter has marked.

    Any score makes an object, so that the mask head has something to do.
    """
    model = onnx.load(path)
    (counts,) = (node for node in model.graph.node if f'{MARK}counts/' in node.output[0])
    counts.input[1] = 'below_all_scores'
    below = onnx.numpy_helper.from_array(np.array(-1, np.float32), 'below_all_scores')
    model.graph.initializer.append(below)
    names = [name for node in model.graph.node for name in node.output if MARK in name]
    return session_for(model, names)


def prepare(
    predictor: Segmenter | Detector, picture: np.ndarray, resized: np.ndarray
) -> dict[str, Any] | None:
    """What the model takes of a picture that the file has resized.

    So that what follows differs by rounding alone: OpenCV resizes in fixed point.

    Args:
        predictor: The model.
        picture: RGB, (H, W, 3), uint8.
        resized: By the file, RGB, (3, h, w), 0 to 255.

    Returns:
        None if the test pipeline resizes it in another way, by more than one step of 256.
    """
    item = predictor.prepare(picture)
    own, found = item['inputs'], torch.from_numpy(resized).flip(0)  # as BGR
    if own.shape != found.shape or (own - found).abs().max() > 1:
        return None
    return {**item, 'inputs': found}


def run_layers(session: onnxruntime.InferenceSession, picture: np.ndarray) -> dict[str, Any]:
    """The values of ``with_layers`` for a picture, by the names that the exporter gave them."""
    names = [output.name for output in session.get_outputs()]
    values = session.run(names, {'pictures': picture[None]})
    return {name.partition(MARK)[2]: value for name, value in zip(names, values, strict=True)}


def layers_of_model(
    predictor: Detector, item: dict[str, Any], found: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """The same by the model, for a prepared picture and the boxes that the file looked at."""
    model = predictor.model
    batch = {key: [item[key]] for key in ('inputs', 'data_samples')}
    with torch.inference_mode():
        maps = model.extract_feat(model.data_preprocessor(batch)['inputs'])
        logits, deltas = model.rpn_head(maps)
        yield from ((f'rpn/out/{i}', value) for i, value in enumerate((*logits, *deltas)))
        for kind in ('bbox', 'mask')[: 1 + model.roi_head.with_mask]:
            extractors = stages(getattr(model.roi_head, f'{kind}_roi_extractor'))
            for stage, head in enumerate(stages(getattr(model.roi_head, f'{kind}_head'))):
                boxes = torch.from_numpy(found[f'{kind}/{stage}/boxes/0'])
                rois = torch.nn.functional.pad(boxes, (1, 0))  # of picture 0
                extractor = extractors[stage]
                values = head(extractor(maps[: extractor.num_inputs], rois))
                values = values if isinstance(values, tuple) else (values,)
                yield from ((f'{kind}/{stage}/out/{i}', each) for i, each in enumerate(values))


def error_of(found: np.ndarray, expected: np.ndarray) -> float | None:
    """The largest difference, as a share of how far ``expected`` goes from the mean of a channel.

    Not as a share of the largest value: that may be a bias, which tells nothing of a picture.

    Args:
        found: (B, channels, ...).
        expected: The same.

    Returns:
        None if channels hold one value or none.
    """
    if expected.size <= expected.shape[1]:
        return None
    axes = tuple(axis for axis in range(expected.ndim) if axis != 1)
    reach = np.abs(expected - expected.mean(axes, keepdims=True)).max()
    return float(np.abs(found - expected).max() / max(reach, 1e-9))


def compare_layers(
    session: onnxruntime.InferenceSession, predictor: Detector, picture: np.ndarray
) -> float | None:
    """Compare the resized picture, outputs of the RPN, and those of every head.

    Each part of the model gets what that part of the file got, so that differences do not add up.

    Args:
        session: Of ``with_layers``.
        predictor: The model.
        picture: RGB, (H, W, 3), uint8.

    Returns:
        The largest ``error_of``, infinite if the picture was resized in another way; None if a
        head had nothing to look at.
    """
    found = run_layers(session, picture)
    item = prepare(predictor, picture, found['resized/0'][0])
    if item is None:
        return np.inf
    errors: dict[str, list[float]] = {}
    for name, expected in layers_of_model(predictor, item, found):
        error = error_of(found[name].astype(np.float32), expected.numpy())
        of_part = errors.setdefault(name.partition('/out/')[0], [])
        if error is not None:
            of_part.append(error)
    if not all(errors.values()):
        return None
    return float(np.max([error for part in errors.values() for error in part]))
