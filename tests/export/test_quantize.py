from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip('onnx')
pytest.importorskip('onnxruntime')

import onnx
from onnx import TensorProto, helper

import onnx_files
from tiny_run import exit_code
from vit5_dense.export.quantize import chosen_nodes
from vit5_dense.onnx_model import OnnxModel

QKV = 'model.backbone.blocks.0.attn.qkv.weight'


def network(path: Path, qkv: str = QKV, **meta: Any) -> Path:
    """A segmentor: a product with weights in a block, one of activations, a neck, a last layer.

    The class of a pixel is its strongest channel.
    """
    spread = np.random.default_rng(0).normal(size=(3, 16))
    gather = np.linalg.pinv(spread).T  # (3, 16)
    weights = {
        qkv: spread,
        'model.neck.weight': np.eye(16)[..., None, None],
        'model.decode_head.conv_seg.weight': gather[..., None, None],
    }
    neck, last = ['maps', 'model.neck.weight'], ['level', 'model.decode_head.conv_seg.weight']
    nodes = [
        helper.make_node('Cast', ['pictures'], ['floats'], 'cast', to=TensorProto.FLOAT),
        helper.make_node('MatMul', ['floats', qkv], ['wide'], 'product'),
        helper.make_node('Transpose', ['wide'], ['turned'], 'turn', perm=[0, 1, 3, 2]),
        helper.make_node('MatMul', ['wide', 'turned'], ['similar'], 'blocks.0.scores'),
        helper.make_node('Softmax', ['similar'], ['shares'], 'soft'),
        helper.make_node('MatMul', ['shares', 'wide'], ['mixed'], 'blocks.0.mix'),
        helper.make_node('Transpose', ['mixed'], ['maps'], 'channels', perm=[0, 3, 1, 2]),
        helper.make_node('Conv', neck, ['level'], 'neck'),
        helper.make_node('Conv', last, ['logits'], 'last'),
        helper.make_node('ArgMax', ['logits'], ['numbers'], 'best', axis=1, keepdims=0),
        helper.make_node('Cast', ['numbers'], ['labels'], 'whole', to=TensorProto.INT32),
    ]
    meta = {**onnx_files.SEG, **meta}
    sides = meta['size'] or ['H', 'W']
    labels = helper.make_tensor_value_info('labels', TensorProto.INT32, ['B', *sides])
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    return onnx_files.save(path, nodes, [labels], ['B', *sides, 3], meta, weights)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of four pictures of 24 x 32 pixels."""
    folder = tmp_path / 'in'
    folder.mkdir()
    for seed in range(4):
        noise = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), np.uint8)
        Image.fromarray(noise).save(folder / f'{seed}.png')
    return folder


def kinds(path: Path) -> dict[str, str]:
    """Operator of each node."""
    return {node.name: node.op_type for node in onnx.load(path).graph.node}


def test_products_with_weights_of_blocks_are_chosen_and_nothing_sensitive(tmp_path: Path) -> None:
    model = onnx.load(network(tmp_path / 'a.onnx'))
    assert chosen_nodes(model, convolutions=False) == ['product']
    assert chosen_nodes(model, convolutions=True) == ['product', 'neck']


def test_torch_s_note_tells_the_block_where_names_do_not(tmp_path: Path) -> None:
    model = onnx.load(network(tmp_path / 'a.onnx', qkv='val_3'))
    assert chosen_nodes(model, convolutions=False) == []
    entry = model.graph.node[1].metadata_props.add()
    entry.key, entry.value = 'pkg.torch.onnx.name_scopes', "['', 'model.backbone.blocks.11', 'qkv']"
    assert chosen_nodes(model, convolutions=False) == ['product']


@pytest.mark.parametrize('static', [True, False], ids=['static', 'dynamic'])
def test_the_new_file_is_in_int8_and_sees_what_the_old_one_sees(
    tmp_path: Path, pictures: Path, static: bool, capsys: pytest.CaptureFixture
) -> None:
    source, out = network(tmp_path / 'a.onnx', label_offset=1), tmp_path / 'new' / 'b.onnx'
    way = ['--static', pictures] if static else ['--dynamic']
    assert exit_code('quantize', source, '--out', out, *way) == 0
    assert f'{2 if static else 1} nodes in int8' in capsys.readouterr().out
    before, after = OnnxModel(source), OnnxModel(out)
    assert (before.precision, after.precision) == ('fp32', 'int8')
    assert after.meaning == before.meaning
    picture = np.asarray(Image.open(pictures / '3.png'))
    assert (after(picture) == before(picture)).mean() > 0.95
    made = kinds(out)
    assert made['soft'] == 'Softmax'
    assert made['blocks.0.scores'] == made['blocks.0.mix'] == 'MatMul'
    assert made['last'] == 'Conv'
    assert {'QuantizeLinear' if static else 'MatMulInteger'} <= set(made.values())
    weights = {tensor.name: tensor for tensor in onnx.load(out).graph.initializer}
    assert QKV not in weights, 'kept as int8'
    assert {node.domain for node in onnx.load(out).graph.node} <= {'', 'ai.onnx'}
    assert [path.name for path in out.parent.iterdir()] == ['b.onnx']


def test_a_broken_picture_is_left_out_and_named(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture
) -> None:
    (pictures / '1.png').write_text('no picture')
    source, out = network(tmp_path / 'a.onnx'), tmp_path / 'b.onnx'
    assert exit_code('quantize', source, '--out', out, '--static', pictures) == 0
    told = capsys.readouterr()
    assert '1.png cannot be read' in told.err
    assert '3 of 3 pictures' in told.err
    assert out.is_file()


def test_speed_and_size_of_both_files_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    source, out = network(tmp_path / 'a.onnx'), tmp_path / 'b.onnx'
    assert exit_code('quantize', source, '--out', out, '--dynamic') == 0
    lines = [line.split() for line in capsys.readouterr().out.replace('│', ' ').splitlines()]
    rows = {line[0]: [float(x) for x in line[1:]] for line in lines if line[:1] in (['ms'], ['MB'])}
    assert len(rows) == 2
    for before, after, ratio in rows.values():
        assert ratio == pytest.approx(after / before, rel=0.01)
    sizes = [path.stat().st_size / 2**20 for path in (source, out)]
    assert rows['MB'][:2] == pytest.approx(sizes, rel=0.001)


def test_a_model_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = network(tmp_path / 'a.onnx')
    assert exit_code('quantize', 'nothere.onnx', '--out', out, '--dynamic') == 2
    assert 'there is no model file nothere.onnx' in capsys.readouterr().err


def test_pictures_are_chosen_evenly(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture
) -> None:
    argv = [network(tmp_path / 'a.onnx'), '--out', tmp_path / 'b.onnx', '--static', pictures]
    assert exit_code('quantize', *argv, '--max-pictures', 2) == 0
    assert '2 of 2 pictures' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('meta', 'options', 'part'),
    [
        ({'precision': 'int8'}, ['--dynamic'], 'is in int8'),
        ({'precision': 'fp16'}, ['--dynamic'], 'without --fp16'),
        ({'qkv': 'other'}, ['--dynamic'], 'no products with weights'),
        ({'size': [24, 33]}, ['--static', 'in'], '0.png: the picture has 32 x 24 pixels'),
        ({}, ['--static', 'text'], 'none of the pictures can be used'),
        ({}, ['--dynamic', '--config', 'none.py'], 'config none.py does not exist'),
        ({}, ['--static', 'nowhere'], 'nowhere matches no picture'),
        ({}, ['--static', 'in', '--max-pictures', '0'], '--max-pictures 0'),
        ({}, ['--dynamic', '--out', 'a.onnx'], 'is the model itself'),
        ({}, ['--dynamic', '--out', 'b.txt'], 'must end with .onnx'),
    ],
)
def test_what_cannot_be_done_is_told_and_nothing_is_left(
    tmp_path: Path,
    pictures: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    meta: dict[str, Any],
    options: list[str],
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    network(tmp_path / 'a.onnx', **meta)
    (tmp_path / 'text').write_text('no picture')
    before = sorted(tmp_path.rglob('*'))
    assert exit_code('quantize', 'a.onnx', '--out', 'b.onnx', *options) == 2
    errors = [x for x in capsys.readouterr().err.splitlines() if x.startswith('error: ')]
    assert len(errors) == 1
    assert part in errors[0]
    assert sorted(tmp_path.rglob('*')) == before
