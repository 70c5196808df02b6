"""Tiny exported models, made by hand: what tools/export.py promises, without a network."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEG = {
    'format': 1, 'version': '0.1.0', 'task': 'segmentation', 'classes': ['red', 'green', 'blue'],
    'palette': [[250, 0, 0], [0, 250, 0], [0, 0, 250]], 'label_offset': 0, 'size': None,
    'precision': 'fp32',
}  # fmt: skip
DET = {
    'format': 1, 'version': '0.1.0', 'task': 'detection', 'classes': ['cat', 'dog'],
    'palette': [[250, 0, 0], [0, 250, 0]], 'category_ids': [7, 3], 'mask_threshold': 0.5,
    'size': None, 'precision': 'fp32',
}  # fmt: skip


def save(
    path: Path,
    nodes: list,
    outputs: list,
    shape: list[Any],
    meta: dict | str | None,
    weights: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write a model of nodes that read ``pictures``; ``meta`` goes into the metadata."""
    pictures = helper.make_tensor_value_info('pictures', TensorProto.UINT8, shape)
    tensors = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(nodes, 'model', [pictures], outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    if meta is not None:
        text = meta if isinstance(meta, str) else json.dumps(meta)
        helper.set_model_props(model, {'vit5_dense': text})
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def segmentor(path: Path, batch: int | str = 'B', **meta: Any) -> Path:
    """A file whose class of a pixel is its strongest channel, the first of equals."""
    nodes = [
        helper.make_node('Cast', ['pictures'], ['floats'], to=TensorProto.FLOAT),
        helper.make_node('ArgMax', ['floats'], ['numbers'], axis=-1, keepdims=0),
        helper.make_node('Cast', ['numbers'], ['labels'], to=TensorProto.INT32),
    ]
    meta = {**SEG, **meta}
    sides = meta['size'] or ['H', 'W']
    labels = helper.make_tensor_value_info('labels', TensorProto.INT32, [batch, *sides])
    return save(path, nodes, [labels], [batch, *sides, 3], meta)


def detector(path: Path, found: dict[str, np.ndarray], **meta: Any) -> Path:
    """A file that finds the same in every batch.

    Args:
        path: The file.
        found: Each output by its name.
        meta: Changes of the metadata.
    """
    nodes, outputs = [], []
    for name, value in found.items():
        constant = numpy_helper.from_array(value)
        nodes.append(helper.make_node('Constant', [], [name], value=constant))
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        outputs.append(helper.make_tensor_value_info(name, kind, ['N', *value.shape[1:]]))
    return save(path, nodes, outputs, ['B', 'H', 'W', 3], {**DET, **meta})


def failing(path: Path, task: str) -> Path:
    """A file that fails on a picture whose first byte is 0, and else finds a class or an object.

    The byte is looked up in a table of two rows, from behind: -1 is one, -1000 is none.
    """
    constants = {'zero': 0, 'begin': [0, 0, 0], 'end': [1, 1, 1], 'axes': [1, 2, 3]}
    weights = {name: np.array(value) for name, value in constants.items()}
    weights |= {'good': np.array(-1), 'bad': np.array(-1000), 'nil': np.zeros(2, np.int64)}
    nodes = [
        helper.make_node('Slice', ['pictures', 'begin', 'end', 'axes'], ['first']),
        helper.make_node('Cast', ['first'], ['byte'], to=TensorProto.INT64),
        helper.make_node('Equal', ['byte', 'zero'], ['black']),
        helper.make_node('Where', ['black', 'bad', 'good'], ['place']),  # (B, 1, 1, 1)
        helper.make_node('Gather', ['nil', 'place'], ['nothing']),
    ]
    if task == 'segmentation':
        nodes += [
            helper.make_node('Cast', ['pictures'], ['floats'], to=TensorProto.FLOAT),
            helper.make_node('ArgMax', ['floats'], ['best'], axis=-1, keepdims=0),
            helper.make_node('Squeeze', ['nothing', 'last'], ['flat']),
            helper.make_node('Add', ['best', 'flat'], ['sum']),
            helper.make_node('Cast', ['sum'], ['labels'], to=TensorProto.INT32),
        ]
        weights['last'] = np.array([3])
        outputs = [helper.make_tensor_value_info('labels', TensorProto.INT32, ['B', 'H', 'W'])]
        return save(path, nodes, outputs, ['B', 'H', 'W', 3], SEG, weights)
    nodes += [
        helper.make_node('Reshape', ['nothing', 'flat'], ['row']),  # (B,)
        helper.make_node('Shape', ['row'], ['count']),
        helper.make_node('Squeeze', ['count'], ['number']),
        helper.make_node('Range', ['zero', 'number', 'one'], ['places']),
        helper.make_node('Add', ['places', 'row'], ['picture']),
        helper.make_node('Identity', ['row'], ['labels']),
        helper.make_node('Cast', ['row'], ['none'], to=TensorProto.FLOAT),
        helper.make_node('Add', ['none', 'sure'], ['scores']),
        helper.make_node('Unsqueeze', ['none', 'second'], ['column']),
        helper.make_node('Add', ['column', 'box'], ['boxes']),
    ]
    weights |= {'flat': np.array([-1]), 'one': np.array(1), 'second': np.array([1])}
    weights |= {'sure': np.array(0.9, np.float32), 'box': np.array([[2, 4, 12, 14]], np.float32)}
    kinds = {'boxes': TensorProto.FLOAT, 'scores': TensorProto.FLOAT}
    outputs = [
        helper.make_tensor_value_info(
            name, kinds.get(name, TensorProto.INT64), ['N', 4] if name == 'boxes' else ['N']
        )
        for name in ('boxes', 'scores', 'labels', 'picture')
    ]
    return save(path, nodes, outputs, ['B', 'H', 'W', 3], DET, weights)


def objects(number: int = 3) -> dict[str, np.ndarray]:
    """The first few of two objects in picture 0 and one in picture 1: full, upper half, full."""
    masks = np.ones((3, 28, 28), np.float32)
    masks[1, 14:] = 0
    found = {
        'boxes': np.array([[2, 4, 12, 14], [0, 0, 8, 8], [5, 5, 20, 15]], np.float32),
        'scores': np.array([0.9, 0.2, 0.6], np.float32),
        'labels': np.array([1, 0, 0]),
        'picture': np.array([0, 0, 1]),
        'masks': masks,
    }
    return {name: value[:number] for name, value in found.items()}
