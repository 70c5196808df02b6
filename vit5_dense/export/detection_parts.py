"""Parts of a graph that torch exports, and how they are joined."""

import logging
import warnings
from collections.abc import Sequence

import onnx_ir as ir
import torch
from onnxscript import OpBuilder
from torch import Tensor, nn

MARK = 'layers/'  # in names of values by which a file is checked


def mark(name: str, values: Sequence[ir.Value]) -> None:
    """Name values so that ``check_layers`` finds them, as NAME/0, NAME/1 ..."""
    for i, value in enumerate(values):
        value.name = f'{MARK}{name}/{i}'


def trace(module: nn.Module, example: Tensor, free: Sequence[int], opset: int) -> ir.Model:
    """What torch's exporter makes of a module with one input.

    Args:
        module: The module.
        example: An input; its free axes are longer than 1.
        free: Its axes of any length.
        opset: Version of the standard operators.
    """
    logging.getLogger('onnxscript').setLevel(logging.ERROR)  # it tells what it does not fold
    shape = dict.fromkeys(free, torch.export.Dim.DYNAMIC)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter('ignore')  # the exporter's own deprecated calls
        program = torch.onnx.export(
            module.eval(),
            (example,),
            dynamo=True,
            dynamic_shapes=(shape,),
            opset_version=opset,
            verbose=False,
        )
    assert program is not None  # it is where no file is asked for
    return program.model


def splice(op: OpBuilder, part: ir.Model, value: ir.Value, prefix: str) -> list[ir.Value]:
    """Move the nodes and weights of a part to the end of the graph that is being built.

    Args:
        op: Builder of the graph.
        part: Has one input; it is empty afterwards.
        value: What the part is applied to.
        prefix: Begins its names from now on.

    Returns:
        The outputs of the part.
    """
    source, target = part.graph, op.builder.graph
    outputs = list(source.outputs)
    source.outputs.clear()
    source.inputs[0].replace_all_uses_with(value)
    for name, weight in list(source.initializers.items()):
        del source.initializers[name]
        weight.name = f'{prefix}/{name}'
        target.register_initializer(weight)
    nodes = list(source)
    source.remove(nodes)
    for node in nodes:
        node.name = f'{prefix}/{node.name}'
        for output in node.outputs:
            output.name = f'{prefix}/{output.name}'
    target.extend(nodes)
    return outputs
