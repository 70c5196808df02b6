"""An exported model in int8: the products with weights in the backbone's blocks, by onnxruntime.

Everything sensitive keeps fp32: norms, softmax and the products inside attention, RoPE, the patch
embedding, the last layer of every head, and what decides about boxes.
"""

import json
import logging
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from ..errors import UserError
from ..instances import Instances
from ..onnx_file import KEY
from ..onnx_model import OnnxModel
from ..pictures import read_picture

PRODUCTS = ('Gemm', 'MatMul')
BLOCKS = re.compile(r'\bblocks\.\d+')
SENSITIVE = re.compile('patch_embed|conv_seg|rpn_cls|rpn_reg|conv_logits')
# Weights of 7 bits: processors without VNNI add two products of 8 bits in 16 and overflow.
OPTIONS = {'per_channel': True, 'reduce_range': True, 'weight_type': QuantType.QInt8}


def origin(node: onnx.NodeProto) -> str:
    """All that tells which module a node is from: its names, and what torch's exporter notes."""
    notes = [entry.value for entry in node.metadata_props if 'name_scopes' in entry.key]
    return ' '.join([node.name, *node.input, *notes])


def chosen_nodes(model: onnx.ModelProto, convolutions: bool) -> list[str]:
    """Names of the nodes that become int8.

    Args:
        model: An exported file.
        convolutions: Whether those of neck and heads do as well, but for the sensitive ones.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    chosen = []
    for node in model.graph.node:
        if len(node.input) < 2 or node.input[1] not in weights:
            continue  # a product of two activations, or something else
        where = origin(node)
        product = node.op_type in PRODUCTS and BLOCKS.search(where)
        convolution = node.op_type == 'Conv' and convolutions and not SENSITIVE.search(where)
        if product or convolution:
            chosen.append(node.name)
    return chosen


class Pictures(CalibrationDataReader):
    """Pictures as onnxruntime asks for them to learn the ranges of activations.

    Args:
        files: Pictures that the model takes.
        tick: Called after each.
    """

    def __init__(self, files: Sequence[Path], tick: Callable[[], None]) -> None:
        self.left = iter(files)
        self.tick = tick

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next picture as a batch of one; None at the end."""
        path = next(self.left, None)
        if path is None:
            return None
        picture = read_picture(path)
        self.tick()
        return {'pictures': picture[None]}


def usable(model: OnnxModel, files: Sequence[Path]) -> tuple[list[Path], list[UserError]]:
    """Pictures that a model takes, and what is wrong with the others.

    Raises:
        UserError: If there are files, and none of them is one.
    """
    fine, failed = [], []
    for path in files:
        try:
            picture = read_picture(path)
        except UserError as error:
            failed.append(error)
            continue
        try:
            model.check(picture)
        except UserError as error:
            failed.append(UserError(f'{path}: {error}'))
            continue
        fine.append(path)
    if failed and not fine:
        raise UserError(f'none of the pictures can be used. {failed[0]}')
    return fine, failed


def milliseconds(model: OnnxModel, pictures: Sequence[Path], runs: int = 5) -> float:
    """What a model takes for a picture, the median over a few pictures or runs of a gray one."""
    shown = [read_picture(path) for path in pictures[:runs]] or [gray(model)] * runs
    model(shown[0])  # the first run of a session takes longer
    times = []
    for picture in shown:
        start = time.perf_counter()
        model(picture)
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times))


def gray(model: OnnxModel) -> np.ndarray:
    """A picture that a model takes, (H, W, 3), uint8."""
    return np.full((*(model.size or (224, 320)), 3), 128, np.uint8)


def quantize(
    source: Path, out: Path, pictures: Sequence[Path] = (), tick: Callable[[], None] = lambda: None
) -> int:
    """Write an exported model in int8, whole or not at all.

    Args:
        source: A file in fp32.
        out: Where the new one goes.
        pictures: That ranges of activations are learnt from, which makes convolutions int8 as well;
            without pictures, ranges are taken from each input as it comes. See ``usable``.
        tick: Called for each picture.

    Returns:
        Number of nodes that became int8.

    Raises:
        UserError: If the file is not in fp32, nothing in it can become int8, or the result does
            not run.
    """
    before = OnnxModel(source)
    if before.precision != 'fp32':
        raise UserError(
            f'{source} is in {before.precision}: quantise the fp32 file, as tools/export.py writes '
            'it without --fp16'
        )
    chosen = chosen_nodes(onnx.load(source), convolutions=bool(pictures))
    if not chosen:
        raise UserError(f'{source} has no products with weights in blocks of a ViT-5 backbone')
    logging.getLogger().addFilter(_is_no_advice)
    try:
        with tempfile.TemporaryDirectory(prefix=f'.{out.name}.', dir=out.parent) as folder:
            made = Path(folder, out.name)
            if pictures:
                reader = Pictures(pictures, tick)
                quantize_static(source, made, reader, nodes_to_quantize=chosen, **OPTIONS)
            else:
                quantize_dynamic(source, made, nodes_to_quantize=chosen, **OPTIONS)
            _finish(made)
            try_out(before, OnnxModel(made), pictures)
            made.replace(out)
    finally:
        logging.getLogger().removeFilter(_is_no_advice)
    return len(chosen)


def _is_no_advice(record: logging.LogRecord) -> bool:
    """Whether a log record is not onnxruntime's advice to merge operators into its own before."""
    return 'pre-processing before quantization' not in record.getMessage()


def _finish(path: Path) -> None:
    """Set the precision in the metadata of a new file."""
    model = onnx.load(path)
    (entry,) = (entry for entry in model.metadata_props if entry.key == KEY)
    entry.value = json.dumps({**json.loads(entry.value), 'precision': 'int8'})
    onnx.checker.check_model(model)
    onnx.save(model, path)


def try_out(before: OnnxModel, after: OnnxModel, pictures: Sequence[Path]) -> None:
    """Run a new file on a picture, the first or a gray one.

    Raises:
        UserError: If it fails, or gives something of another form.
    """
    picture = read_picture(pictures[0]) if pictures else gray(before)
    found, expected = after(picture), before(picture)
    if isinstance(found, Instances):
        assert found.scores is not None
        fine = np.isfinite(found.boxes).all() and np.isfinite(found.scores).all()
    else:
        assert isinstance(expected, np.ndarray)
        fine = found.shape == expected.shape
    if not fine:
        raise UserError(f'{before.path} in int8 gives no sensible result: use the fp32 file')
