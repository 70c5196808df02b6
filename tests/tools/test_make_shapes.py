import fcntl
import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from vit5_dense.datasets import shapes_files, shapes_folder
from vit5_dense.errors import run_tool

REPO = Path(__file__).resolve().parents[2]
TOOL = REPO / 'tools' / 'make_shapes.py'
ENV = {**os.environ, 'PYTHONPATH': str(REPO)}
SMALL = ['--train', '4', '--val', '2', '--workers', '1']


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location('make_shapes', TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(out: Path, *options: str) -> int:
    """Exit code of the tool, run in this process."""
    tool = load_tool()
    return run_tool(lambda: tool.main(['--out', str(out), *SMALL, *options]))


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob('*') if p.is_file()}


def start(out: Path, *options: str) -> subprocess.Popen:
    """Start a long run and wait until it has written some pictures."""
    process = subprocess.Popen(
        [sys.executable, str(TOOL), '--out', str(out), '--train', '5000', *options],
        env=ENV,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while len(list(out.parent.glob('*.partial/images/train/*'))) < 5:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def one_line(text: str) -> str:
    """The text, which must be one line and no traceback."""
    assert text.count('\n') == 1, text
    assert 'Traceback' not in text
    return text


def test_writes_the_set_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / 'data' / 'shapes'
    assert make(out) == 0
    captured = capsys.readouterr()
    assert '4 + 2 scenes of seed 0, written' in one_line(captured.out)
    assert captured.err.splitlines()[-1] == '6/6 scenes, 0 s left'
    names = [
        f'{kind}/{split}/{k:06d}.png'
        for kind in ('annotations', 'images')
        for split, count in (('train', 4), ('val', 2))
        for k in range(1, count + 1)
    ]
    assert sorted(content(out)) == sorted(
        [*names, 'instances_train.json', 'instances_val.json', 'meta.json']
    )
    assert os.listdir(out.parent) == ['shapes']


def test_a_complete_set_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / 'a')
    capsys.readouterr()
    monkeypatch.setattr(shapes_folder, 'write_set', None)  # calling it would fail
    assert make(tmp_path / 'a') == 0
    assert 'are there already' in one_line(capsys.readouterr().out)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert make(tmp_path) == 0
    assert (tmp_path / 'meta.json').is_file()


def test_the_command_does_without_torch(tmp_path: Path) -> None:
    command = [sys.executable, '-X', 'importtime', str(TOOL), '--out', str(tmp_path / 'a'), *SMALL]
    result = subprocess.run(command, check=False, env=ENV, cwd='/', capture_output=True, text=True)
    assert result.returncode == 0
    assert 'vit5_dense.datasets.shapes' in result.stderr
    assert 'torch' not in result.stderr


def test_files_do_not_depend_on_the_workers(tmp_path: Path) -> None:
    make(tmp_path / 'a')
    subprocess.run(
        [sys.executable, str(TOOL), '--out', str(tmp_path / 'b'), *SMALL[:4], '--workers', '3'],
        env=ENV,
        check=True,
    )
    assert content(tmp_path / 'a') == content(tmp_path / 'b')


@pytest.mark.parametrize('workers', ['1', '2'])
def test_a_killed_run_leaves_no_set_and_the_next_starts_over(tmp_path: Path, workers: str) -> None:
    process = start(tmp_path / 'a', '--workers', workers)
    process.kill()
    process.wait()
    assert not (tmp_path / 'a').exists()
    assert (tmp_path / 'a.partial').exists()
    assert make(tmp_path / 'a') == 0
    assert os.listdir(tmp_path) == ['a']
    assert len(list((tmp_path / 'a').glob('images/train/*'))) == 4


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    process = start(tmp_path / 'a', '--workers', '2')
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert 'interrupted' in errors
    assert 'Traceback' not in errors
    assert os.listdir(tmp_path) == []


def test_two_runs_do_not_write_the_same_set(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes_folder, '_LOCK_WAIT', 0.1)
    (tmp_path / 'a.partial').mkdir()
    handle = os.open(tmp_path / 'a.partial', os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert make(tmp_path / 'a') == 2
    assert 'another run is writing' in one_line(capsys.readouterr().err)
    os.close(handle)
    assert make(tmp_path / 'a') == 0


@pytest.mark.parametrize('options', [[], ['--force']])
@pytest.mark.parametrize('name', ['notes.txt', 'images/train/000001.png'])
def test_a_users_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture, name: str, options: list[str]
) -> None:
    path = tmp_path / 'a' / name
    path.parent.mkdir(parents=True)
    path.write_text('mine')
    assert make(tmp_path / 'a', *options) == 2
    assert 'choose another --out' in one_line(capsys.readouterr().err)
    assert content(tmp_path / 'a') == {name: b'mine'}
    assert os.listdir(tmp_path) == ['a']


@pytest.mark.parametrize('place', ['a', 'a.partial', 'a.replaced'])
def test_a_users_file_in_or_beside_a_set_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture, place: str
) -> None:
    make(tmp_path / 'a')
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / 'notes.txt').write_text('mine')
    before = content(tmp_path)
    capsys.readouterr()
    assert make(tmp_path / 'a', '--force') == 2
    assert f'{place}/notes.txt does not belong' in one_line(capsys.readouterr().err)
    assert content(tmp_path) == before


def test_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / 'a').write_text('mine')
    assert make(tmp_path / 'a') == 2
    assert 'is a file' in one_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ('options', 'key'), [(['--seed', '1'], 'seed 0, not 1'), (['--train', '5'], 'counts')]
)
def test_another_set_is_replaced_by_force_only(
    tmp_path: Path, capsys: pytest.CaptureFixture, options: list[str], key: str
) -> None:
    make(tmp_path / 'a')
    before = content(tmp_path / 'a')
    capsys.readouterr()
    assert make(tmp_path / 'a', *options) == 2
    line = one_line(capsys.readouterr().err)
    assert key in line
    assert '--force' in line
    assert content(tmp_path / 'a') == before
    (tmp_path / 'a.replaced').mkdir()  # as a run killed between two renames leaves it
    assert make(tmp_path / 'a', *options, '--force') == 0
    assert content(tmp_path / 'a') != before
    assert os.listdir(tmp_path) == ['a']


def test_a_set_of_another_version_is_not_taken_for_ours(tmp_path: Path) -> None:
    make(tmp_path / 'a')
    meta = json.loads((tmp_path / 'a' / 'meta.json').read_text())
    (tmp_path / 'a' / 'meta.json').write_text(json.dumps({**meta, 'version': 0}))
    assert make(tmp_path / 'a') == 2


@pytest.mark.parametrize(
    'name', ['images/train/000003.png', 'annotations/val/000001.png', 'instances_val.json']
)
def test_a_damaged_set_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture, name: str) -> None:
    make(tmp_path / 'a')
    whole = content(tmp_path / 'a')
    (tmp_path / 'a' / name).unlink()
    capsys.readouterr()
    assert make(tmp_path / 'a') == 2
    assert str(Path(name).parent if name.endswith('png') else name) in one_line(
        capsys.readouterr().err
    )
    assert make(tmp_path / 'a', '--force') == 0
    assert content(tmp_path / 'a') == whole


@pytest.mark.parametrize('workers', ['1', '2'])
def test_a_failed_write_is_one_line_and_keeps_the_old_set(tmp_path: Path, workers: str) -> None:
    make(tmp_path / 'a')
    before = content(tmp_path)
    # a picture has 25 to 45 kB: a limit of 10 kB a file fails as a full disk does
    result = subprocess.run(
        [sys.executable, str(TOOL), '--out', str(tmp_path / 'a'), '--force', '--workers', workers],
        env=ENV,
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)),
    )
    assert result.returncode == 2
    assert 'could not be written' in one_line(result.stderr)
    assert content(tmp_path) == before


def test_a_worker_that_dies_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(shapes_files, 'make_scene', lambda seed: os._exit(3))
    assert make(tmp_path / 'a', '--workers', '2') == 2
    assert 'ended early' in one_line(capsys.readouterr().err)
    assert os.listdir(tmp_path) == []


def test_too_little_space_is_said_first(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shapes_folder.shutil, 'disk_usage', lambda path: type('Usage', (), {'free': 1_000_000})
    )
    assert make(tmp_path / 'a', '--train', '1000') == 2
    assert '1 MB free' in one_line(capsys.readouterr().err)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ('option', 'value'),
    [('--train', '0'), ('--val', '-1'), ('--seed', '-1'), ('--workers', '0'), ('--train', 'many')],
)
def test_a_bad_number_ends_with_status_2(tmp_path: Path, option: str, value: str) -> None:
    with pytest.raises(SystemExit) as caught:
        make(tmp_path / 'a', option, value)
    assert caught.value.code == 2
    assert os.listdir(tmp_path) == []
