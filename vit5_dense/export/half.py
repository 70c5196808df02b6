"""Half precision for what gains from it: matrix products and convolutions."""

import onnx
import onnx_ir as ir
from onnxruntime.transformers.float16 import convert_float_to_float16

HALF = ('Conv', 'ConvTranspose', 'Gemm', 'MatMul')


def to_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Matrix products and convolutions in fp16, all else in fp32, as under autocast.

    Norms, softmax, RoPE with its angles, residual sums and what decides about boxes stay.

    Args:
        model: A file in fp32; not to be used afterwards.
    """
    others = {node.op_type for node in model.graph.node} - set(HALF)
    half = convert_float_to_float16(
        model, keep_io_types=True, op_block_list=sorted(others), disable_shape_infer=True
    )
    whole = ir.from_proto(half)
    whole.graph.sort()  # the converter appends its casts
    return ir.to_proto(whole)
