"""Export of a trained model: from a predictor to a file."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnxscript import GraphBuilder

from ..atomic import write_atomically
from ..backbones import ViT5, ViT5LoRA
from ..errors import UserError
from ..inference import Detector, Segmenter
from ..onnx_file import open_model
from . import metadata
from .detection import export_detector, general_size
from .detection_parts import mark, splice
from .half import to_half
from .resizing import find_resizing
from .segmentation import export_segmentor
from .wrap import decide, enter, resample, scale_back, sides

IR_VERSION = 10  # of the format; onnxruntime reads it since 1.18
LIMIT = 2**31 - 2**24  # bytes of a protobuf, less room for the graph


def begin(size: tuple[int, int] | None, opset: int) -> tuple[ir.Graph, ir.Value]:
    """An empty graph and its input ``pictures``; see ``export``."""
    shape = ir.Shape(['B', 'H', 'W', 3] if size is None else [1, *size, 3])
    kind = ir.TensorType(ir.DataType.UINT8)
    pictures = ir.Value(name='pictures', shape=shape, type=kind)
    opsets = {'': opset}
    return ir.Graph([pictures], [], nodes=[], opset_imports=opsets, name='vit5_dense'), pictures


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """Have a model a plain backbone for a while, with the adapters of a ``ViT5LoRA`` merged."""
    backbone = model.backbone
    if isinstance(backbone, ViT5LoRA):
        plain = ViT5(**backbone._options)
        plain.load_state_dict(backbone.merge())
        model.backbone = plain.eval()
    try:
        yield
    finally:
        model.backbone = backbone


def export(
    predictor: Segmenter | Detector,
    size: tuple[int, int] | None,
    logits: bool = False,
    half: bool = False,
    opset: int = 18,
) -> onnx.ModelProto:
    """A whole model as one graph in standard operators.

    Args:
        predictor: The model, on the CPU.
        size: Height and width that every picture will have, in batches of one; None leaves batch,
            height and width free.
        logits: Whether a segmentor's file gives them beside the labels.
        half: Whether matrix products and convolutions are in fp16.
        opset: Version of the standard operators, from 18.

    Returns:
        The file, with a description in its metadata.

    Raises:
        UserError: If something in the config cannot be exported.
    """
    model = predictor.model.eval()
    resizing = find_resizing(predictor.steps)
    graph, pictures = begin(size, opset)
    builder = GraphBuilder(graph)
    op = builder.op
    resized, target = enter(op, pictures, resizing, size)
    mark('resized', [resized])
    if size is None:
        example = torch.zeros(2, 3, *general_size(model))
    else:
        example = torch.zeros(1, 3, *(resizing.size(*size) if resizing else size))
    with without_adapters(model):
        if isinstance(predictor, Segmenter):
            core = export_segmentor(model, example, size is None, opset)
        else:
            core = ir.from_proto(export_detector(model, example, size is None, opset))
    if isinstance(predictor, Segmenter):
        (scores,) = splice(op, core, resized, 'net')
        if target is not None:
            scores = resample(op, scores, sides(op, pictures), model.align_corners)
        head = model.decode_head
        labels, scores = decide(op, scores, None if head.out_channels > 1 else head.threshold)
        builder.add_output(labels, 'labels')
        if logits:
            builder.add_output(scores, 'logits')
    else:
        names = [value.name for value in core.graph.outputs]
        for name, value in zip(names, splice(op, core, resized, 'net'), strict=True):
            if name == 'boxes' and target is not None:
                value = scale_back(op, value, pictures, target)
            builder.add_output(value, name)
    whole = ir.to_proto(ir.Model(graph, ir_version=IR_VERSION))
    if half:
        whole = to_half(whole)
    metadata.write(whole, metadata.describe(predictor, size, 'fp16' if half else 'fp32'))
    return whole


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a file that runs, whole or not at all.

    Raises:
        UserError: If it cannot be written, is larger than the format allows, or onnxruntime does
            not open it.
    """
    # Counted, since protobuf fails on what is too large.
    weights = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    if weights > LIMIT:
        raise UserError(
            f'{path} would have {weights / 2**30:.1f} GB, an ONNX file holds 2: use --fp16 or a '
            'smaller model'
        )
    onnx.checker.check_model(model)
    with tempfile.TemporaryDirectory(prefix=f'.{path.name}.', dir=path.parent) as folder:
        made = Path(folder, path.name)
        try:
            write_atomically(made, model.SerializeToString())
            open_model(made)
        except UserError as error:
            raise UserError(str(error).replace(str(made), str(path))) from error
        made.replace(path)
