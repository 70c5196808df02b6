import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from mmcv.transforms import Resize
from onnxscript import GraphBuilder

from vit5_dense.errors import UserError
from vit5_dense.export.pooling import MatrixPool, without_adaptive_pooling
from vit5_dense.export.resizing import find_resizing
from vit5_dense.export.whole import IR_VERSION, begin
from vit5_dense.export.wrap import enter

STEPS = [
    {'scale': (64, 32), 'keep_ratio': True},
    {'scale': (32, 64), 'keep_ratio': True},
    {'scale': (50, 40)},
    {'scale_factor': 0.7},
    {'scale_factor': (1.5, 0.6)},
    {'scale_factor': 1.3, 'keep_ratio': True},
]
SHAPES = [(20, 30), (31, 17), (64, 128), (100, 1), (7, 250)]


def graph(step: dict, size: tuple[int, int] | None) -> onnxruntime.InferenceSession:
    whole, pictures = begin(size, 18)
    builder = GraphBuilder(whole)
    resized, _ = enter(builder.op, pictures, find_resizing([{'type': 'Resize', **step}]), size)
    builder.add_output(resized, 'resized')
    model = ir.to_proto(ir.Model(whole, ir_version=IR_VERSION))
    return onnxruntime.InferenceSession(model.SerializeToString())


@pytest.mark.parametrize('step', STEPS, ids=str)
def test_pictures_are_resized_as_by_the_pipeline(step: dict) -> None:
    """Within one step of 256: OpenCV computes in fixed point."""
    rng, session = np.random.default_rng(0), graph(step, None)
    for shape in SHAPES:
        picture = rng.integers(0, 256, (*shape, 3), np.uint8)
        expected = Resize(**step)({'img': picture})['img']
        for one in (session, graph(step, shape)):
            (found,) = one.run(None, {'pictures': picture[None]})
            assert found.shape == (1, 3, *expected.shape[:2])
            assert np.array_equal(found, np.round(found))
            assert np.abs(found[0].transpose(1, 2, 0) - expected).max() <= 1


@pytest.mark.parametrize('shape', [(1, 1), (2, 5), (6, 7), (13, 31)])
@pytest.mark.parametrize('size', [1, 2, 3, (6, 4)])
def test_pooling_by_matrices_is_adaptive_pooling(size: int | tuple, shape: tuple) -> None:
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(size))
    x = torch.randn(2, 3, *shape)
    expected = model(x)
    with without_adaptive_pooling(model):
        assert isinstance(model[0], MatrixPool)
        torch.testing.assert_close(model(x), expected)
    assert isinstance(model[0], torch.nn.AdaptiveAvgPool2d)


@pytest.mark.parametrize(
    'step',
    [
        {'type': 'Pad', 'size_divisor': 32},
        {'type': 'Resize', 'scale': (4, 4), 'interpolation': 'nearest'},
    ],
)
def test_other_steps_are_refused_by_name(step: dict) -> None:
    with pytest.raises(UserError, match=f'test_pipeline: {step["type"]} cannot be exported'):
        find_resizing([{'type': 'LoadImageFromNDArray'}, step])


@pytest.mark.parametrize('step', [{'scale': (64, 32), 'keep_ratio': True}, {'scale_factor': 0.1}])
def test_a_sliver_keeps_one_pixel(step: dict) -> None:
    """Where the pipeline of the framework fails."""
    for shape in ((500, 1), (1, 500)):
        for size in (None, shape):
            (found,) = graph(step, size).run(None, {'pictures': np.zeros((1, *shape, 3), np.uint8)})
            assert min(found.shape[2:]) == 1


def test_a_factor_of_one_is_no_resizing() -> None:
    assert find_resizing([{'type': 'mmdet.Resize', 'scale_factor': 1.0}]) is None
