import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from tiny_run import Run, call, exit_code, load_tool, trained

pytest.importorskip('mmseg')
pytest.importorskip('onnxscript')

from vit5_dense.backbones.lora import merge_lora
from vit5_dense.building import build_model
from vit5_dense.config import load_config
from vit5_dense.errors import UserError
from vit5_dense.export import check, whole
from vit5_dense.export.check import compare
from vit5_dense.export.check_layers import compare_layers, prepare, with_layers
from vit5_dense.inference import load_predictor
from vit5_dense.instances import Instances
from vit5_dense.onnx_model import OnnxModel
from vit5_dense.pictures import read_picture

FLOAT, FLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
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


def destroy(path: Path, part: str, out: Path) -> Path:
    """A copy of a file in which the weights of a part are zero."""
    model = onnx.load(path)
    chosen = [
        tensor
        for tensor in model.graph.initializer
        if part in tensor.name and tensor.data_type in (FLOAT, FLOAT16)
    ]
    assert chosen
    for tensor in chosen:
        tensor.raw_data = bytes(len(tensor.raw_data))
    onnx.save(model, out)
    return out


@pytest.mark.parametrize('half', [False, True], ids=['fp32', 'fp16'])
def test_a_detector_that_finds_nothing_is_compared_layer_by_layer(
    detector: tuple[Path, Run], tmp_path: Path, half: bool
) -> None:
    trained_run = detector[1]
    cfg = load_config(str(trained_run.config), {'model.test_cfg.rcnn.score_thr': 0.99})
    predictor = load_predictor(cfg, trained_run.checkpoint)
    good = tmp_path / 'good.onnx'
    whole.save(whole.export(predictor, (70, 90), half=half), good)
    picture = [np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8)]
    (row,) = compare(good, predictor, picture)
    assert (row['objects'], row['found'], row['right']) == (0, 0, True)
    for part in ('backbone', 'rpn_cls', 'bbox_head', 'mask_head'):
        (row,) = compare(destroy(good, part, tmp_path / 'wrong.onnx'), predictor, picture)
        assert (row['objects'], row['found'], row['right']) == (0, 0, False)


def test_a_file_that_resizes_otherwise_is_wrong(
    segmentor: Path, detector: tuple[Path, Run], config: Path, run: Run
) -> None:
    """Made with Resize and looked at without, or the other way round."""
    picture = np.random.default_rng(0).integers(0, 256, (70, 100, 3), np.uint8)
    (row,) = compare(segmentor, load_predictor(load_config(str(config)), run.checkpoint), [picture])
    assert row['right'] is True
    plain = load_predictor(load_config(str(run.config)), run.checkpoint)
    (row,) = compare(segmentor, plain, [picture])
    assert row['right'] is False
    trained_run = detector[1]
    cfg = load_config(str(trained_run.config), {'model.test_cfg.rcnn.score_thr': 0.99})
    predictor = load_predictor(cfg, trained_run.checkpoint)
    assert compare_layers(with_layers(detector[0]), predictor, picture) < 1e-3
    other = np.random.default_rng(1).integers(0, 256, (3, 70, 100)).astype(np.float32)
    assert prepare(predictor, picture, other) is None


def test_what_could_not_be_compared_is_not_called_right(
    segmentor: Path,
    config: Path,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(whole, 'export', lambda *options: onnx.load(segmentor))
    monkeypatch.setattr(check, 'compare', lambda *options: [{'size': (1, 1), 'right': None}] * 2)
    assert exit_code('export', config, run.checkpoint, '--out', tmp_path / 'a.onnx') == 1
    assert 'is not checked' in ' '.join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (('--out', 'a.pth'), '--out a.pth must name a file that ends in .onnx'),
        (('--out', 'a.onnx', '--opset', '11'), '--opset 11 must be from 18 to'),
        (('--out', 'a.onnx', '--opset', '999'), '--opset 999 must be from 18 to'),
        (('--out', 'a.onnx', '--size', '99999999x99999999'), 'is too large for the memory'),
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


def test_a_good_file_is_not_replaced_by_one_that_does_not_run(
    segmentor: Path, tmp_path: Path
) -> None:
    out, model = tmp_path / 'a.onnx', onnx.load(segmentor)
    whole.save(model, out)
    before = out.read_bytes()
    model.metadata_props.pop()
    with pytest.raises(UserError, match=f'^{out} is an ONNX file, but no model'):
        whole.save(model, out)
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize('tool', ['export', 'visualize'])
def test_an_exported_file_is_no_checkpoint(
    tool: str, segmentor: Path, config: Path, capsys: pytest.CaptureFixture
) -> None:
    more = () if tool == 'export' else ('a.png',)
    assert exit_code(tool, config, segmentor, *more, '--out', 'out.onnx') == 2
    assert 'is an exported file' in capsys.readouterr().err


def test_adapters_are_merged(run: Run, tmp_path: Path) -> None:
    """The graph of a model with LoRA is that of the plain one with the same features."""
    pytest.importorskip('peft')
    options = {'model.backbone.type': 'ViT5LoRA'}
    model = build_model(load_config(str(run.config), options))
    for name, value in model.named_parameters():
        if '.lora_' in name:
            torch.nn.init.normal_(value, std=0.5)
    state = model.state_dict()
    meta = torch.load(run.checkpoint, weights_only=True)['meta']
    graphs, found = [], []
    picture = np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8)
    for more, weights in ((options, state), ({}, merge_lora(state))):
        torch.save({'state_dict': weights, 'meta': meta}, tmp_path / 'a.pth')
        predictor = load_predictor(load_config(str(run.config), more), tmp_path / 'a.pth')
        graphs.append(whole.export(predictor, (70, 90)))
        whole.save(graphs[-1], tmp_path / 'a.onnx')
        assert compare(tmp_path / 'a.onnx', predictor, [picture])[0]['right'] is True
        found.append(OnnxModel(tmp_path / 'a.onnx')(picture))
        assert type(predictor.model.backbone).__name__ == ('ViT5LoRA' if more else 'ViT5')
    assert len(graphs[0].graph.node) == len(graphs[1].graph.node)
    assert np.array_equal(*found)


def test_both_files_of_a_quantisation_are_scored(
    segmentor: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out, scores = tmp_path / 'int8.onnx', tmp_path / 'scores.json'
    argv = (segmentor, '--out', out, '--dynamic', '--config', config)
    assert exit_code('quantize', *argv) == 0
    lines = capsys.readouterr().out.replace('│', ' ').splitlines()
    (row,) = (line.split() for line in lines if line.split()[:1] == ['mIoU'])
    expected = [call('test', config, file, '--out', scores)['mIoU'] for file in (segmentor, out)]
    assert [float(x) for x in row[1:3]] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize('size', ['512', '0x5', 'axb', '5x5x5'])
def test_sizes_that_are_none(size: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        load_tool('export').parse_args(['c', 'p', '--out', 'a.onnx', '--size', size])
    assert f'{size} is no size such as 512x683' in capsys.readouterr().err
