import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip('onnx')
pytest.importorskip('onnxruntime')

import onnx_files
from tiny_run import ENV, REPO, exit_code
from vit5_dense import runtime
from vit5_dense.errors import UserError
from vit5_dense.instances import Instances
from vit5_dense.onnx_file import choose_providers
from vit5_dense.picture_files import image_ids
from vit5_dense.runtime import OnnxModel

NOT_AT_RUNTIME = (
    'fvcore', 'huggingface_hub', 'matplotlib', 'mmcv', 'mmdet', 'mmengine', 'mmseg', 'onnx',
    'pycocotools', 'rich', 'safetensors', 'timm', 'torch', 'torchvision',
)  # fmt: skip
# As a sitecustomize: Python finds none of these, as if they were not installed.
HIDE = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_other(cls, name, path=None, target=None):
    return None if name.split('.')[0] in {NOT_AT_RUNTIME} else find(name, path, target)
PathFinder.find_spec = classmethod(find_other)
"""


CONSTRAINTS = REPO / 'constraints.txt'


def copied(folder: Path) -> Path:
    """A copy of the package's sources, since building it leaves files beside them."""
    out = folder / 'sources'
    kept = ('setup.py', 'pyproject.toml', 'README.md', 'MANIFEST.in', 'LICENSE', 'constraints.txt')
    out.mkdir()
    for name in kept:
        shutil.copy(REPO / name, out)
    for name in ('vit5_dense', 'configs', 'tools'):
        shutil.copytree(REPO / name, out / name, ignore=shutil.ignore_patterns('__pycache__'))
    return out


def noise(height: int = 20, width: int = 30, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def save(path: Path, picture: np.ndarray | None = None) -> Path:
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(noise() if picture is None else picture).save(path)
    return path


def read(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


@pytest.fixture
def segmentor(tmp_path: Path) -> Path:
    return onnx_files.segmentor(tmp_path / 'seg.onnx')


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    return onnx_files.detector(tmp_path / 'det.onnx', onnx_files.objects())


def test_a_segmentor_gives_the_class_of_every_pixel(segmentor: Path) -> None:
    model = OnnxModel(segmentor)
    assert (model.task, model.size, model.precision) == ('segmentation', None, 'fp32')
    assert model.classes == ('red', 'green', 'blue')
    assert [list(color) for color in model.palette] == onnx_files.SEG['palette']
    for height, width in ((20, 30), (1, 1), (33, 7)):
        picture = noise(height, width)
        labels = model(picture)
        assert np.issubdtype(labels.dtype, np.integer)
        np.testing.assert_array_equal(labels, picture.argmax(axis=-1))


@pytest.mark.parametrize('fixed', ['B', 1, 2], ids=['free', 'one', 'two'])
def test_pictures_of_a_batch_get_what_each_would_get_alone(tmp_path: Path, fixed: Any) -> None:
    size = None if fixed == 'B' else [20, 30]
    model = OnnxModel(onnx_files.segmentor(tmp_path / 'seg.onnx', fixed, size=size))
    pictures = [noise(seed=seed) for seed in range(3)]
    found = model.batch(pictures)
    assert len(found) == 3
    for labels, picture in zip(found, pictures, strict=True):
        np.testing.assert_array_equal(labels, picture.argmax(axis=-1))
    assert model.batch([]) == []


def test_the_objects_of_a_batch_are_those_of_their_pictures(detector: Path) -> None:
    model = OnnxModel(detector, threads=1)
    assert model.task == 'detection'
    first, second, third = model.batch([noise()] * 3)
    np.testing.assert_array_equal(first.boxes, [[2, 4, 12, 14], [0, 0, 8, 8]])
    assert first.scores.tolist() == pytest.approx([0.9, 0.2])
    assert first.labels.tolist() == [1, 0]
    assert first.masks.shape == (2, 20, 30)
    assert first.masks[0].sum() == 100
    assert first.masks[1].sum() == 32
    assert second.masks.sum() == 150
    assert len(third) == 0


@pytest.mark.parametrize('masks', [True, False])
def test_no_object_is_an_answer_as_well(tmp_path: Path, masks: bool) -> None:
    found = onnx_files.objects(0)
    if not masks:
        del found['masks']
    none = OnnxModel(onnx_files.detector(tmp_path / 'det.onnx', found))(noise())
    assert isinstance(none, Instances)
    assert none.boxes.shape == (0, 4)
    assert (none.masks.shape if masks else none.masks) == ((0, 20, 30) if masks else None)


def test_the_mask_threshold_is_that_of_the_file(tmp_path: Path) -> None:
    found = onnx_files.objects(1)
    found['masks'] *= 0.4
    for threshold, area in ((0.5, 0), (0.3, 100)):
        path = onnx_files.detector(tmp_path / 'det.onnx', found, mask_threshold=threshold)
        inside = OnnxModel(path)(noise()).masks[0, 4:14, 2:12]
        assert inside.sum() == area


def test_pictures_that_do_not_fit_are_refused_with_both_sizes(tmp_path: Path) -> None:
    model = OnnxModel(onnx_files.segmentor(tmp_path / 'seg.onnx', 1, size=[20, 30]))
    with pytest.raises(UserError, match=r'30 x 21 pixels.*30 x 20.*--dynamic') as raised:
        model(noise(21, 30))
    assert '\n' not in str(raised.value)
    for wrong in (noise().astype(np.float32), noise()[..., :2], noise()[..., 0]):
        with pytest.raises(UserError, match='uint8'):
            model(wrong)
    free = OnnxModel(onnx_files.segmentor(tmp_path / 'free.onnx'))
    with pytest.raises(UserError, match='one size'):
        free.batch([noise(), noise(21, 30)])


def cut(share: float) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        content = onnx_files.segmentor(path).read_bytes()
        path.write_bytes(content[: int(len(content) * share)])
        return path

    return make


def text(path: Path, content: str = '<html>') -> Path:
    path.write_text(content)
    return path


def opset(path: Path) -> Path:
    import onnx

    model = onnx.load(onnx_files.segmentor(path))
    model.opset_import[0].version = 999
    onnx.save(model, path)
    return path


def told(meta: dict | str | None) -> Callable[[Path], Path]:
    """A detector with this as its metadata."""

    def make(path: Path) -> Path:
        import onnx

        graph = onnx.load(onnx_files.detector(path, onnx_files.objects())).graph
        return onnx_files.save(path, graph.node, graph.output, ['B', 'H', 'W', 3], meta)

    return make


@pytest.mark.parametrize(
    ('make', 'parts'),
    [
        (lambda path: path, ['there is no model file', 'looked in']),
        (lambda path: path.mkdir() or path, ['there is no model file']),
        (text, ['is no ONNX file', 'tools/export.py']),
        (lambda path: text(path, ''), ['is no ONNX file']),
        (cut(0.3), ['cut off or damaged', 'copy it again']),
        (cut(0.5), ['cut off or damaged']),  # behind the graph
        (cut(0.9), ['cut off or damaged']),
        (opset, ['does not run in onnxruntime', 'Update it']),
        (told(None), ['no model of vit5_dense', 'tools/export.py']),
        (told('{"format": 1'), ['damaged metadata', 'tools/export.py']),
        (told('[]'), ['damaged metadata']),
        (told({'format': 2}), ['format 2 of a newer vit5_dense', 'up to 1', 'pip install -U']),
        (told({**onnx_files.DET, 'task': 'depth'}), ['damaged metadata', "'depth'"]),
        (told({**onnx_files.DET, 'category_ids': [1]}), ['damaged metadata']),
        (told({**onnx_files.DET, 'classes': ['cat']}), ['damaged metadata']),
        (told({**onnx_files.DET, 'palette': None}), ['damaged metadata']),
        (lambda path: onnx_files.segmentor(path, **onnx_files.DET), ['lacks outputs']),
    ],
)
def test_files_that_cannot_be_run_are_refused_by_name(
    tmp_path: Path, make: Callable[[Path], Path], parts: list[str]
) -> None:
    path = make(tmp_path / 'model.onnx')
    with pytest.raises(UserError) as raised:
        OnnxModel(path)
    message = str(raised.value)
    assert '\n' not in message
    for part in (str(path), *parts):
        assert part in message


def test_providers_are_chosen_by_name_and_wrong_ones_are_named(segmentor: Path) -> None:
    names = ['CUDAExecutionProvider', 'AzureExecutionProvider', 'CPUExecutionProvider']
    assert choose_providers(None, names) == [names[0], names[2]]
    assert choose_providers(None, names[1:]) == [names[2]]
    assert choose_providers(['cpu', names[0]], names) == [names[2], names[0]]
    with pytest.raises(UserError, match='provider Abacus'):
        OnnxModel(segmentor, ['Abacus'])


def test_a_missing_onnxruntime_comes_with_the_line_that_installs_it(
    segmentor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, 'onnxruntime', None)
    with pytest.raises(UserError, match='Run: python -m pip install onnxruntime'):
        OnnxModel(segmentor)


def test_a_failure_inside_onnxruntime_is_told_with_the_size(
    segmentor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Session:
        def run(self, *_: object) -> None:
            raise RuntimeError('bad\nalloc')

    model = OnnxModel(segmentor)
    monkeypatch.setattr(model, '_session', Session())
    with pytest.raises(UserError, match=r'1 picture\(s\) of 30 x 20 pixels: bad alloc.*--batch'):
        model(noise())
    monkeypatch.setattr(Session, 'run', lambda *_: 1 / 0)
    with pytest.raises(UserError, match=r'division by zero$'):
        model(noise())


def run(*argv: object) -> int:
    """Exit code of ``python -m vit5_dense.runtime``, run in this process."""
    return exit_code(runtime, *argv)


def test_the_command_line_writes_labels_and_overlays(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """In batches: sizes alternate, and one file is broken."""
    model = onnx_files.segmentor(tmp_path / 'seg.onnx', label_offset=1)
    sizes = [(20, 30), (20, 30), (30, 20), (20, 30)]
    pictures = [noise(*size, seed) for seed, size in enumerate(sizes)]
    for number, picture in enumerate(pictures):
        save(tmp_path / 'in' / f'{number}.png', picture)
    text(tmp_path / 'in' / '1b.png', 'no picture')
    assert run(model, tmp_path / 'in', '--out', tmp_path / 'out', '--batch', 2) == 1
    for number, picture in enumerate(pictures):
        labels = read(tmp_path / 'out' / 'labels' / f'{number}.png')
        np.testing.assert_array_equal(labels, picture.argmax(axis=-1) + 1)
        assert read(tmp_path / 'out' / 'overlays' / f'{number}.png').shape[1] > picture.shape[1]
    told = capsys.readouterr()
    assert '4 of 5 pictures done' in told.out
    assert 'pictures per second, the model alone' in told.out
    assert '5 of 5 pictures' in told.err
    (error,) = (line for line in told.err.splitlines() if line.startswith('error: '))
    assert '1b.png cannot be read' in error


def test_a_picture_of_another_size_is_named_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = onnx_files.segmentor(tmp_path / 'seg.onnx', 1, size=[20, 30])
    save(tmp_path / 'in' / 'a.png', noise(9, 9))
    save(tmp_path / 'in' / 'b.png')
    assert run(model, tmp_path / 'in', '--out', tmp_path / 'out', '--batch', 4) == 1
    assert [path.name for path in (tmp_path / 'out' / 'labels').iterdir()] == ['b.png']
    assert 'a.png: the picture has 9 x 9 pixels' in capsys.readouterr().err


@pytest.mark.parametrize('task', ['segmentation', 'detection'])
def test_a_picture_that_the_model_fails_on_is_named_and_the_others_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture, task: str
) -> None:
    """In a batch with others of its size; onnxruntime itself says nothing."""
    path = tmp_path / 'model.onnx'
    onnx_files.failing(path, task)
    for number, first in enumerate((9, 9, 0, 9, 9)):  # fails where the first byte is 0
        picture = noise()
        picture[0, 0, 0] = first
        save(tmp_path / 'in' / f'{number}.png', picture)
    assert run(path, tmp_path / 'in', '--out', tmp_path / 'out', '--batch', 3) == 1
    written = sorted(file.stem for file in (tmp_path / 'out' / 'overlays').iterdir())
    assert written == ['0', '1', '3', '4']
    told = capfd.readouterr()
    assert '4 of 5 pictures done' in told.out
    (error,) = (line for line in told.err.splitlines() if 'of 5 pictures' not in line)
    assert '2.png: ' in error
    assert 'fails on 1 picture(s) of 30 x 20 pixels' in error
    assert '--batch' not in error
    if task == 'detection':
        entries = json.loads((tmp_path / 'out' / 'results.json').read_text())
        assert {entry['file_name'] for entry in entries} == {'0.png', '1.png', '3.png', '4.png'}


@pytest.mark.parametrize('compressed', [True, False])
def test_the_command_line_writes_objects_with_the_ids_of_the_annotations(
    tmp_path: Path, detector: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    coco = pytest.importorskip('pycocotools.mask')
    if not compressed:
        monkeypatch.setitem(sys.modules, 'pycocotools.mask', None)
    for name in ('42.png', '50.png'):
        save(tmp_path / 'in' / name)
    out = tmp_path / 'out'
    assert run(detector, tmp_path / 'in', '--out', out, '--batch', 2, '--score-thr', 0.5) == 0
    entries = json.loads((out / 'results.json').read_text())
    seen = [(e['image_id'], e['file_name'], e['category_id'], e['bbox']) for e in entries]
    assert seen == [
        (42, '42.png', 3, [2, 4, 10, 10]),
        (42, '42.png', 7, [0, 0, 8, 8]),
        (50, '50.png', 7, [5, 5, 15, 10]),
    ]
    areas = []
    for entry in entries:
        lengths = entry['segmentation']
        assert isinstance(lengths['counts'], str if compressed else list)
        lengths = lengths if compressed else coco.frPyObjects(lengths, *lengths['size'])
        areas.append(int(coco.decode(lengths).sum()))
    assert areas == [100, 32, 150]
    assert sorted(path.name for path in (out / 'overlays').iterdir()) == ['42.png', '50.png']
    assert not (out / 'labels').exists()


@pytest.mark.parametrize(
    ('options', 'parts'),
    [
        (['--tile', '64'], ['--tile is not for an exported model']),
        (['--overlap=8'], ['--overlap is not for']),
        (['--cfg-options', 'a=1'], ['--cfg-options is not for']),
        (['--device', 'cpu'], ['--device is not for', '--providers']),
        (['--batch', '0'], ['--batch 0']),
        (['--threads', '0'], ['--threads 0']),
        (['--opacity', '2'], ['--opacity 2']),
        (['--providers', 'nope'], ['provider nope', 'cpu']),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    tmp_path: Path,
    segmentor: Path,
    capsys: pytest.CaptureFixture,
    options: list[str],
    parts: list[str],
) -> None:
    argv = [segmentor, save(tmp_path / 'a.png'), '--out', tmp_path / 'out', *options]
    for tool in (runtime, 'infer'):
        assert exit_code(tool, *argv) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith('error: ')
        assert all(part in line for part in parts)
    assert not (tmp_path / 'out').exists()


def test_infer_does_the_same_for_an_exported_file(
    tmp_path: Path, segmentor: Path, detector: Path
) -> None:
    picture = save(tmp_path / 'a.png')
    for model in (segmentor, detector):
        written = []
        for number, tool in enumerate((runtime, 'infer')):
            out = tmp_path / model.stem / str(number)
            assert exit_code(tool, model, picture, '--out', out) == 0
            files = sorted(path for path in out.rglob('*') if path.is_file())
            written.append({str(file.relative_to(out)): file.read_bytes() for file in files})
        assert len(written[0]) == 2
        assert written[0] == written[1]


def test_a_config_before_an_exported_file_is_refused(
    segmentor: Path, capsys: pytest.CaptureFixture
) -> None:
    assert exit_code('infer', 'config.py', segmentor, 'a.png', '--out', 'out') == 2
    assert 'leave out config.py' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('names', 'ids'),
    [
        (['007.jpg', '42.png'], [7, 42]),
        (['2.jpg', 'cat.jpg'], [1, 2]),
        (['cat.jpg', '1.jpg'], [1, 2]),
        (['007.jpg', '7.jpg', '9.jpg'], [1, 2, 3]),
    ],
)
def test_no_two_pictures_have_one_id(names: list[str], ids: list[int]) -> None:
    assert list(image_ids(map(Path, names)).values()) == ids


def test_a_screen_sees_progress_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = runtime.Progress(10)
    now = progress.begin
    monkeypatch.setattr(runtime.time, 'monotonic', lambda: now + 4)
    assert progress.line() == '0 of 10 pictures, 0 per second'
    progress.tick()
    progress.tick()
    assert progress.line() == '2 of 10 pictures, 0.5 per second, 16 s left'


@pytest.fixture
def bare(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs Python where nothing is installed beyond what the extra ``runtime`` brings."""
    text(tmp_path / 'sitecustomize.py', HIDE)

    def call(*argv: object) -> subprocess.CompletedProcess:
        env = {**ENV, 'PYTHONPATH': f'{tmp_path}:{REPO}'}
        command = [sys.executable, *map(str, argv)]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)

    return call


def test_exported_models_run_where_torch_is_not_installed(
    tmp_path: Path, segmentor: Path, detector: Path, bare: Callable
) -> None:
    save(tmp_path / 'a.png')
    for model, name in ((segmentor, 'labels/a.png'), (detector, 'results.json')):
        for tool in (['-m', 'vit5_dense.runtime'], [REPO / 'tools' / 'infer.py']):
            out = tmp_path / f'{model.stem}{len(tool)}'
            process = bare(*tool, model, 'a.png', '--out', out)
            assert process.returncode == 0, process.stderr
            assert '1 of 1 pictures done' in process.stdout
            assert (out / name).is_file()
    code = "from vit5_dense.runtime import OnnxModel; print(OnnxModel('seg.onnx').classes)"
    assert "('red', 'green', 'blue')" in bare('-c', code).stdout


def test_the_extra_is_enough_in_an_environment_of_its_own(tmp_path: Path, segmentor: Path) -> None:
    python = tmp_path / 'venv' / 'bin' / 'python'
    subprocess.run([sys.executable, '-m', 'venv', python.parents[1]], check=True)
    env = {name: value for name, value in ENV.items() if name != 'PYTHONPATH'}
    pinned = re.findall(r'(?m)^(?:onnxruntime|numpy|pillow)==\S+', CONSTRAINTS.read_text(), re.I)
    install = [
        python,
        '-m',
        'pip',
        'install',
        '-q',
        '--retries',
        '0',
        f'{copied(tmp_path)}[runtime]',
    ]
    done = subprocess.run([*install, *pinned], env=env, capture_output=True, text=True)
    if done.returncode:
        reason = ' '.join(done.stderr.split())
        if re.search('connection|name resolution|from versions: none', reason, re.I):
            pytest.skip(f'the package index cannot be reached: {reason}')
        raise AssertionError(reason)
    save(tmp_path / 'a.png')
    code = (
        'import importlib.util as u; print(u.find_spec("torch"), u.find_spec("vit5_dense").origin)'
    )
    found = subprocess.run(
        [python, '-c', code], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert found.stdout.startswith('None ')
    assert str(tmp_path / 'venv') in found.stdout
    command = [python, '-m', 'vit5_dense.runtime', segmentor, 'a.png', '--out', 'out']
    process = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    np.testing.assert_array_equal(read(tmp_path / 'out' / 'labels' / 'a.png'), noise().argmax(-1))


def test_what_needs_torch_says_so_where_it_is_not_installed(tmp_path: Path, bare: Callable) -> None:
    needs = 'vit5_dense needs torch, timm, fvcore, mmengine. Run: python -m pip install torch=='
    for code in ('from vit5_dense import ViT5', 'import vit5_dense; vit5_dense.SimplePyramid'):
        last = bare('-c', code).stderr.splitlines()[-1]
        assert last.startswith(f'vit5_dense.health.MissingDependencyError: {needs}')
    assert 'AttributeError' in bare('-c', 'import vit5_dense; vit5_dense.nothing').stderr
    process = bare(REPO / 'tools' / 'infer.py', 'config.py', 'x.pth', 'a.png', '--out', 'out')
    assert process.returncode == 2
    assert process.stderr.startswith(f'error: {needs}')


def test_the_module_starts_without_torch_where_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip('torch')
    code = (
        'import runpy, sys; sys.argv = ["-m"]; sys.orig_argv = ["python", "-m", '
        '"vit5_dense.runtime"]; import vit5_dense.runtime; print("torch" in sys.modules)'
    )
    command = [sys.executable, '-c', code]
    process = subprocess.run(command, env=ENV, cwd=tmp_path, capture_output=True, text=True)
    assert process.stdout == 'False\n', process.stderr
