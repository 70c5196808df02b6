import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from tiny_run import Run, call, exit_code, load_tool, trained

pytest.importorskip('mmseg')
pytest.importorskip('onnxscript')

from vit5_dense.errors import UserError
from vit5_dense.export import whole
from vit5_dense.instances import Instances
from vit5_dense.onnx_model import OnnxModel
from vit5_dense.pictures import read_picture

STANDARD = {'', 'ai.onnx'}


# Pictures go through the model at another size than their own.
RESIZE = """
_base_ = {base!r}
steps = list(_base_.val_dataloader.dataset.pipeline)
resize = dict(type='Resize', scale=(90, 60), keep_ratio=True)
test_dataloader = dict(dataset=dict(pipeline=[steps[0], resize, *steps[1:]]))
"""


@pytest.fixture(scope='module')
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory)


@pytest.fixture(scope='module')
def config(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp('resize') / 'resize.py'
    path.write_text(RESIZE.format(base=str(run.config)))
    return path


@pytest.fixture(scope='module')
def segmentor(run: Run, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp('export') / 'model.onnx'
    assert exit_code('export', config, run.checkpoint, '--out', out, '--logits') == 0
    return out


def pictures(run: Run) -> list[Path]:
    return sorted((run.data / 'images' / 'val').glob('*.png'))


def test_a_dynamic_file_describes_itself(segmentor: Path, run: Run) -> None:
    model = onnx.load(segmentor)
    assert {opset.domain for opset in model.opset_import} <= STANDARD
    (entry,) = (entry for entry in model.metadata_props if entry.key == 'vit5_dense')
    found = json.loads(entry.value)
    meta = torch.load(run.checkpoint, weights_only=True)['meta']['dataset_meta']
    assert found['classes'] == list(meta['classes'])
    assert found['palette'] == [list(color) for color in meta['palette']]
    assert (found['task'], found['size'], found['precision']) == ('segmentation', None, 'fp32')
    assert found['label_offset'] == 1


def test_infer_gives_the_same_files_for_either(
    segmentor: Path, config: Path, run: Run, tmp_path: Path
) -> None:
    files = pictures(run)
    for name, model in (('eager', (config, run.checkpoint)), ('onnx', (segmentor,))):
        assert exit_code('infer', *model, *files, '--out', tmp_path / name) == 0
    for path in files:
        labels = [
            read_picture(tmp_path / name / 'labels' / path.name) for name in ('eager', 'onnx')
        ]
        assert (labels[0] != labels[1]).mean() <= 0.01  # hardly trained: classes nearly equal
        assert len(np.unique(labels[0])) > 1


def test_a_batch_equals_its_pictures(segmentor: Path) -> None:
    model = OnnxModel(segmentor)
    batch = np.random.default_rng(0).integers(0, 256, (3, 49, 70, 3), np.uint8)
    for found, picture in zip(model.batch(list(batch)), batch, strict=True):
        assert np.array_equal(found, model(picture))


def test_a_file_of_one_size_in_half_precision(run: Run, tmp_path: Path) -> None:
    """The half of the size of the weights; norms and rotations keep fp32."""
    out = tmp_path / 'half.onnx'
    size = ('--size', '70x90', '--fp16')
    assert exit_code('export', run.config, run.checkpoint, '--out', out, *size) == 0
    model = onnx.load(out)
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [1, 70, 90, 3]
    weights = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    half = {name for name, kind in weights.items() if kind == onnx.TensorProto.FLOAT16}
    products = [node for node in model.graph.node if node.op_type in ('Conv', 'MatMul')]
    assert all(node.input[1] in half for node in products if node.input[1] in weights)
    assert OnnxModel(out).size == (70, 90)
    made_by = {output: node.op_type for node in model.graph.node for output in node.output}
    for node in model.graph.node:  # a cast to fp32 stands before all that is not a product
        if node.op_type in ('ReduceMean', 'Softmax', 'Sqrt', 'Cos', 'Sin'):
            assert made_by.get(node.input[0]) not in ('MatMul', 'Conv')


@pytest.fixture(scope='module')
def detector(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    pytest.importorskip('mmcv._ext', reason='detection needs the compiled ops of mmcv')
    run = trained(tmp_path_factory, detector=True)
    out = tmp_path_factory.mktemp('export') / 'detector.onnx'
    assert exit_code('export', run.config, run.checkpoint, '--out', out) == 0
    return out, run


def test_a_detector_is_one_standard_file(detector: tuple[Path, Run]) -> None:
    model = onnx.load(detector[0])
    assert {opset.domain for opset in model.opset_import} <= STANDARD
    outputs = [output.name for output in model.graph.output]
    assert outputs == ['boxes', 'scores', 'labels', 'picture', 'masks']
    found = OnnxModel(detector[0])(read_picture(pictures(detector[1])[0]))
    assert isinstance(found, Instances)
    assert found.masks is not None


def test_exported_files_score_as_their_models(
    segmentor: Path, config: Path, run: Run, detector: tuple[Path, Run], tmp_path: Path
) -> None:
    for file, settings, trained_run in (
        (segmentor, config, run),
        (detector[0], detector[1].config, detector[1]),
    ):
        expected, found = (
            call('test', settings, model, '--out', tmp_path / 'scores.json')
            for model in (trained_run.checkpoint, file)
        )
        assert set(found) == set(expected)
        assert {name: value for name, value in found.items() if 'time' not in name} == (
            pytest.approx(expected, abs=0.3, nan_ok=True)
        )


def test_a_file_of_other_classes_is_not_scored(
    segmentor: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = onnx.load(segmentor)
    (entry,) = (entry for entry in model.metadata_props if entry.key == 'vit5_dense')
    facts = json.loads(entry.value)
    entry.value = json.dumps({**facts, 'classes': facts['classes'][::-1]})
    onnx.save(model, tmp_path / 'other.onnx')
    assert exit_code('test', config, tmp_path / 'other.onnx') == 2
    assert 'export the model with this config' in capsys.readouterr().err
    assert exit_code('test', config, segmentor, '--tta') == 2
    assert 'leave out --tta' in capsys.readouterr().err


def test_a_wrong_file_is_not_called_done(
    segmentor: Path,
    config: Path,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """The file stays, and the exit code is 1."""
    wrong = onnx.load(segmentor)
    first = next(tensor for tensor in wrong.graph.initializer if 'conv_seg.bias' in tensor.name)
    values = onnx.numpy_helper.to_array(first)[::-1] + np.arange(first.dims[0])
    first.raw_data = values.astype(np.float32).tobytes()
    monkeypatch.setattr(whole, 'export', lambda *options: wrong)
    out = tmp_path / 'wrong.onnx'
    assert exit_code('export', config, run.checkpoint, '--out', out) == 1
    assert out.is_file()
    assert 'does not compute what the model does' in capsys.readouterr().out.replace('\n', ' ')


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (('--out', 'a.pth'), '--out a.pth must name a file that ends in .onnx'),
        (('--out', 'a.onnx', '--opset', '11'), '--opset 11 must be 18 or more'),
        (('--out', 'a.onnx', '--picture', 'none.png'), 'none.png cannot be read'),
    ],
)
def test_mistakes_end_in_one_line(
    run: Run, options: tuple, message: str, capsys: pytest.CaptureFixture
) -> None:
    assert exit_code('export', run.config, run.checkpoint, *options) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert message in error[0]


def test_a_file_that_would_be_too_large_is_not_written(
    segmentor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(segmentor)
    monkeypatch.setattr(whole, 'LIMIT', 10_000)
    with pytest.raises(UserError, match=r'large\.onnx would have 0\.0 GB, an ONNX file holds 2'):
        whole.save(model, tmp_path / 'large.onnx')
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('size', ['512', '0x5', 'axb', '5x5x5'])
def test_sizes_that_are_none(size: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        load_tool('export').parse_args(['c', 'p', '--out', 'a.onnx', '--size', size])
    assert f'{size} is no size such as 512x683' in capsys.readouterr().err
