"""Half precision for what gains from it: matrix products and convolutions."""

import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16

HALF = ('Conv', 'ConvTranspose', 'Gemm', 'MatMul')


def to_half(model: onnx.ModelProto) -> None:
    """Matrix products and convolutions in fp16, all else in fp32, in place.

    Norms, softmax, RoPE with its angles, residual sums and all that decides about boxes keep fp32,
    as under autocast.

    Args:
        model: A file in fp32.
    """
    others = {node.op_type for node in model.graph.node} - set(HALF)
    half = convert_float_to_float16(
        model, keep_io_types=True, op_block_list=sorted(others), disable_shape_infer=True
    )
    model.CopyFrom(half)
