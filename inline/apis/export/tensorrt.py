"""Checks whether TensorRT can be expected to read an ONNX file. They need neither TensorRT nor a GPU.

The operators and their restrictions are those that NVIDIA documents for TensorRT 10.15:
https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

VERSION = '10.15'
OPSETS = range(9, 25)
# TopK returns fewer elements than this.
MAX_TOP_K = 3840
_SUPPORTED = (
    'Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool '
    'BatchNormalization BlackmanWindow Cast CastLike Ceil Celu Clip Concat Constant ConstantOfShape '
    'Conv ConvTranspose Cos Cosh CumSum DeformConv DepthToSpace DequantizeLinear Div Dropout Einsum '
    'Elu Equal Erf Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Gelu Gemm '
    'GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample '
    'GroupNormalization GRU HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity If '
    'ImageScaler InstanceNormalization IsInf IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log '
    'LogSoftmax Loop LRN LSTM LpNormalization LpPool MatMul Max MaxPool Mean '
    'MeanVarianceNormalization Min Mish Mod Mul Neg NonMaxSuppression NonZero Not OneHot Or Pad '
    'ParametricSoftplus Pow PRelu QuantizeLinear RandomNormal RandomNormalLike RandomUniform '
    'RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax '
    'ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize ReverseSequence '
    'RMSNormalization RNN RoiAlign RotaryEmbedding Round STFT ScaledTanh Scan Scatter '
    'ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax Softplus '
    'Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh TensorScatter ThresholdedRelu Tile '
    'TopK Transpose Trilu Unsqueeze Upsample Where Xor '
)
OPERATORS = frozenset(_SUPPORTED.split())
# Types of QuantizeLinear and DequantizeLinear, by their names in ONNX. UINT8 and INT32 are not among them.
QUANTIZED_TYPES = ('INT8', 'INT4', 'FLOAT8E4M3FN', 'FLOAT4E2M1')


def check_tensorrt(path: Path) -> list[str]:
    """Check an ONNX file and return what TensorRT does not support, one line each.

    Raises ``onnx.checker.ValidationError`` or ``onnx.shape_inference.InferenceError`` if the file is not
    valid or its shapes are contradictory.
    """
    import onnx

    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(path)
    problems = [
        f'opset {opset.version}, supported are {OPSETS[0]} to {OPSETS[-1]}'
        for opset in model.opset_import
        if opset.domain in ('', 'ai.onnx') and opset.version not in OPSETS
    ]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    problems += [
        f'function {function.name} of domain {function.domain!r}, which is not standard'
        for function in model.functions
    ]
    return sorted({*problems, *_unsupported_nodes(model.graph, constants)})


def _unsupported_nodes(graph: Any, constants: dict[str, Any]) -> Iterator[str]:
    import onnx

    for node in graph.node:
        if node.domain not in ('', 'ai.onnx'):
            yield f'operator {node.op_type} of domain {node.domain!r}'
        elif node.op_type not in OPERATORS:
            yield f'operator {node.op_type}'
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        if node.op_type == 'TopK':
            count = constants.get(node.input[1])
            if count is not None and int(onnx.numpy_helper.to_array(count).item()) >= MAX_TOP_K:
                yield f'TopK of {MAX_TOP_K} or more elements'
            if not attributes.get('sorted', 1):
                yield 'TopK without sorted=1'
        if node.op_type == 'ScatterND' and attributes.get('reduction', b'none') != b'none':
            yield f'ScatterND with reduction {attributes["reduction"].decode()!r}'
        if node.op_type in ('QuantizeLinear', 'DequantizeLinear'):
            yield from _unsupported_quantization(node, attributes.get('output_dtype', 0), constants)
        for value in attributes.values():
            if isinstance(value, onnx.GraphProto):
                yield from _unsupported_nodes(value, constants)


def _unsupported_quantization(node: Any, output_type: int, constants: dict[str, Any]) -> Iterator[str]:
    """Check the type of the quantised values, which is also that of the zero point, and the zero point."""
    import onnx

    zero_point = constants.get(node.input[2]) if len(node.input) > 2 else None
    if zero_point is not None:
        data_type = zero_point.data_type
        if onnx.numpy_helper.to_array(zero_point).any():
            yield f'{node.op_type} with a zero point other than 0'
    elif node.op_type == 'QuantizeLinear':
        # ONNX's default.
        data_type = output_type or onnx.TensorProto.UINT8
    elif node.input[0] in constants:
        data_type = constants[node.input[0]].data_type
    else:
        # Computed by a QuantizeLinear, which is checked.
        return
    name = onnx.TensorProto.DataType.Name(data_type)
    if name not in QUANTIZED_TYPES:
        yield f'{node.op_type} of {name}'
