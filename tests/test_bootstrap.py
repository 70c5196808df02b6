import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[1]
TOOL = REPO / 'tools' / 'bootstrap.py'
sys.path.insert(0, str(TOOL.parent))

import bootstrap  # noqa: E402
import bootstrap_env  # noqa: E402

DEAD_INDEX = {
    'PIP_CONFIG_FILE': os.devnull,
    'PIP_FIND_LINKS': '',
    'PIP_INDEX_URL': 'http://127.0.0.1:9/simple',
    'PIP_NO_CACHE_DIR': '1',
    'PIP_RETRIES': '1',
}
NEW_CONNECTION = "NewConnectionError('<...>: Failed to establish a new connection')"


def run(venv: Path, level: str = 'seg', **variables: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(TOOL), '--level', level, '--venv', str(venv)]
    env = {**os.environ, **DEAD_INDEX, **variables}  # whatever goes wrong, nothing is installed
    return subprocess.run(command, env=env, capture_output=True, text=True)


def one_line(process: subprocess.CompletedProcess, code: int) -> str:
    """The single line on stderr of a run that failed with this code."""
    assert process.returncode == code, process.stdout + process.stderr
    (line,) = process.stderr.splitlines()
    return line


@pytest.fixture
def env(tmp_path: Path) -> Iterator[bootstrap_env.Environment]:
    """A locked environment whose interpreter is this one, with an empty site-packages."""
    made = bootstrap_env.Environment(tmp_path / 'venv')
    with made.locked():
        made.python.parent.mkdir()
        made.python.symlink_to(sys.executable)
        (made.folder / 'lib' / 'python3.11' / 'site-packages').mkdir(parents=True)
        yield made


@pytest.fixture
def add_dist(env: bootstrap_env.Environment) -> Callable[..., Path]:
    """Puts a package of one module with its record into the environment."""

    def add(name: str, *, installer: bool = True, recorded_size: int = 5) -> Path:
        info = env.site() / f'{name}-1.0.dist-info'
        info.mkdir()
        (env.site() / f'{name}.py').write_text('x = 1')
        record = f'{name}.py,sha256=abc,{recorded_size}\n{name}-1.0.dist-info/RECORD,,\n'
        (info / 'RECORD').write_text(f'{record}__pycache__/{name}.cpython-311.pyc,,\n')
        if installer:
            (info / 'INSTALLER').write_text('pip')
        return info

    return add


def test_an_old_python_reads_far_enough_to_say_so(tmp_path: Path) -> None:
    ast.parse(TOOL.read_text(), feature_version=(3, 7))
    code = (
        'import runpy, sys; sys.version_info = (3, 9, 18); sys.version = "3.9.18 (main)"; '
        f'runpy.run_path({str(TOOL)!r}, run_name="__main__")'
    )
    process = subprocess.run(
        [sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True
    )
    assert 'Python 3.10 or newer is needed' in one_line(process, 2)
    assert 'is 3.9.18; name another one, e.g. make PYTHON=' in process.stderr
    assert not any(tmp_path.iterdir())


def test_a_missing_compiler_is_said_before_anything_is_made(tmp_path: Path) -> None:
    bare = {'PATH': str(tmp_path), 'XDG_CACHE_HOME': str(tmp_path / 'cache'), 'CXX': '', 'CC': ''}
    line = one_line(run(tmp_path / 'venv', 'full', **bare), 1)
    assert 'no C++ compiler' in line
    assert 'apt-get install g++' in line
    assert not (tmp_path / 'venv').exists()


def test_a_compiler_that_fails_is_named(tmp_path: Path) -> None:
    broken = tmp_path / 'broken-c++'
    broken.write_text('#!/bin/sh\necho "fatal error: Python.h: No such file" >&2\nexit 1\n')
    broken.chmod(0o755)
    variables = {'XDG_CACHE_HOME': str(tmp_path / 'cache'), 'CXX': str(broken), 'CC': 'sh'}
    line = one_line(run(tmp_path / 'venv', 'full', **variables), 1)
    assert str(broken) in line
    assert line.endswith('install python3-dev')


def test_without_network_a_run_says_so_and_the_next_starts_over(tmp_path: Path) -> None:
    venv = tmp_path / 'v v'
    (venv / '.vit5_dense').mkdir(parents=True)  # as a run leaves it that was killed at once
    (venv / 'half').write_text('')
    line = one_line(run(venv), 1)
    assert 'the package index cannot be reached' in line
    assert not (venv / 'half').exists()
    assert not (venv / '.vit5_dense' / 'venv.json').exists()


def test_an_environment_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / 'bin').mkdir()
    assert 'was not made by make' in one_line(run(tmp_path), 1)
    assert [path.name for path in tmp_path.iterdir()] == ['bin']


def test_a_second_run_waits_for_the_first(env: bootstrap_env.Environment) -> None:
    command = [sys.executable, str(TOOL), '--level', 'seg', '--venv', str(env.folder)]
    dead = {**os.environ, **DEAD_INDEX}
    with subprocess.Popen(command, env=dead, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout
        assert second.stdout.readline() == f'waiting for another run in {env.folder}\n'
        assert second.poll() is None
        second.kill()


@pytest.mark.parametrize(
    ('log', 'cause'),
    [
        ('ERROR: Could not install: [Errno 28] No space left on device', 'the disk is full'),
        (
            f'WARNING: after {NEW_CONNECTION}\nERROR: No matching distribution found for a',
            'network',
        ),
        (f'WARNING: Retrying after {NEW_CONNECTION}\nERROR: wheel is broken', 'wheel is broken'),
        ('ERROR: No matching distribution found for torch==2.11.0', 'has no torch==2.11.0'),
        ('c++: fatal error: Killed signal terminated program cc1plus', 'MAX_JOBS=1'),
        ('x.cpp:1:10: fatal error: Python.h: No such file or directory', 'python3-dev'),
        ('The virtual environment was not created because ensurepip is not', 'python3-venv'),
        ('noise\nERROR: something else\nnoise', 'ERROR: something else'),
    ],
)
def test_the_cause_of_a_failure_is_told(log: str, cause: str) -> None:
    assert cause in bootstrap_env.explain(log, least_free=1 << 30)


def test_a_disk_that_was_full_is_the_cause_even_without_a_log() -> None:
    assert 'the disk is full' in bootstrap_env.explain('', least_free=1000)


def test_a_failed_command_reports_its_cause_and_log(env: bootstrap_env.Environment) -> None:
    code = 'import sys; print("ERROR: it broke"); sys.exit(3)'
    with pytest.raises(bootstrap_env.BootstrapError, match='step: ERROR: it broke'):
        env.run('step', sys.executable, '-c', code)


def test_commands_see_the_constraints_and_no_foreign_settings(
    env: bootstrap_env.Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('PYTHONPATH', '/elsewhere')
    monkeypatch.setenv('FORCE_CUDA', '1')
    code = 'import json, os; print(json.dumps(dict(os.environ)))'
    seen = json.loads(env.run('step', sys.executable, '-c', code, EXTRA='1'))
    assert seen['PIP_CONSTRAINT'].startswith('file:///')
    assert seen['EXTRA'] == '1'
    assert Path(seen['TMPDIR']) == env.tmp
    assert not {'PYTHONPATH', 'FORCE_CUDA'} & set(seen)


def test_an_interrupted_pip_leaves_no_package_that_is_believed_whole(
    env: bootstrap_env.Environment, add_dist: Callable[..., Path]
) -> None:
    whole = add_dist('whole')
    unfinished = add_dist('unfinished', installer=False)
    cut_off = add_dist('cut_off', recorded_size=500)
    lost = add_dist('lost')
    (env.site() / 'lost.py').unlink()
    (env.site() / '~et_aside').mkdir()
    bootstrap_env.repair(env.site())
    assert whole.exists()
    assert not any(path.exists() for path in (unfinished, cut_off, lost))
    assert not list(env.site().glob('~*'))


def test_a_run_after_an_interrupted_pip_repairs_first(tmp_path: Path, started: list[str]) -> None:
    bootstrap.bootstrap(tmp_path / 'venv', 'seg')
    next((tmp_path / 'venv').glob('lib/*/*/onedl_mmcv-2.3.6.dist-info/INSTALLER')).unlink()
    (tmp_path / 'venv' / '.vit5_dense' / 'busy').touch()
    started.clear()
    bootstrap.bootstrap(tmp_path / 'venv', 'seg')
    assert started == ['mmcv without compiled ops']
    assert not (tmp_path / 'venv' / '.vit5_dense' / 'busy').exists()


def test_a_stamp_holds_until_its_key_or_a_distribution_changes(
    env: bootstrap_env.Environment, add_dist: Callable[..., Path]
) -> None:
    info = add_dist('thing')
    assert not env.stamp_of('step', 'key')
    env.stamp('step', 'key', env.distributions(), extras=['seg'])
    assert env.stamp_of('step', 'key')['extras'] == ['seg']
    assert not env.stamp_of('step', 'another key')
    info.rename(info.with_name('thing-1.1.dist-info'))
    assert not env.stamp_of('step', 'key')


def test_an_emptied_stamp_counts_as_none(env: bootstrap_env.Environment) -> None:
    (env.state / 'step.json').write_text('')
    assert env.stamp_of('step', 'key') == {}


@pytest.fixture
def pip_calls(env: bootstrap_env.Environment, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have been run with pip in the environment."""
    calls: list[Any] = []
    monkeypatch.setattr(env, 'pip', lambda label, *arguments, **_: calls.append(arguments))
    return calls


def test_packages_are_installed_once_for_each_level_that_needs_more(
    env: bootstrap_env.Environment, pip_calls: list[Any]
) -> None:
    for level in ('seg', 'seg', 'full', 'seg', 'lint', 'full'):
        bootstrap.install_packages(env, level)
    full = '.[app,det,export,lora,seg,test]'
    assert pip_calls == [('install', '-e', '.[seg]'), ('install', '-e', full)]


def test_the_ops_free_mmcv_is_never_taken_from_a_cache(
    env: bootstrap_env.Environment, pip_calls: list[Any], add_dist: Callable[..., Path]
) -> None:
    bootstrap.install_mmcv(env)
    (arguments,) = pip_calls
    assert {'--no-cache-dir', '--no-deps', 'onedl-mmcv==2.3.6'} <= set(arguments)
    assert '--no-build-isolation' not in arguments


@pytest.mark.parametrize('works', [True, False])
def test_a_cached_wheel_is_kept_only_if_its_ops_work(
    env: bootstrap_env.Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, works: bool
) -> None:
    def install(env: bootstrap_env.Environment, wheel: Path) -> None:
        if not works:
            raise bootstrap_env.BootstrapError('undefined symbol')

    monkeypatch.setattr(bootstrap, 'install_wheel', install)
    wheel = tmp_path / 'onedl_mmcv-2.3.6-cp311-cp311-linux_x86_64.whl'
    wheel.write_text('')
    bootstrap.keep_wheel(wheel, tmp_path / 'cache')
    assert bootstrap.from_cache(env, tmp_path / 'cache') is works
    assert [p.name for p in (tmp_path / 'cache').iterdir()] == ([wheel.name] if works else [])


def test_wheels_are_told_apart_by_all_they_depend_on() -> None:
    name = bootstrap.wheel_name('cpython-311-x86_64-linux-gnu', '2.11.0+cu130')
    assert name == 'mmcv-2.3.6-cpython-311-x86_64-linux-gnu-torch-2.11.0+cu130'


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Labels of the commands that a bootstrap starts; here they succeed without doing the work."""
    labels: list[str] = []
    cache = tmp_path / 'cache' / 'vit5_dense' / 'wheels' / 'mmcv-2.3.6-abi-torch-2.11.0-cpu'
    cache.mkdir(parents=True)
    (cache / 'onedl_mmcv-2.3.6-cp311-cp311-linux_x86_64.whl').touch()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(bootstrap, 'check_compiler', lambda: None)

    def run(self: bootstrap_env.Environment, label: str, *command: str, **variables: str) -> str:
        labels.append(label)
        (self.folder / 'bin').mkdir(exist_ok=True)
        self.python.touch()
        site = self.folder / 'lib' / 'python3.11' / 'site-packages'
        (site / 'mmcv').mkdir(parents=True, exist_ok=True)
        if label == 'mmcv without compiled ops':
            info = site / 'onedl_mmcv-2.3.6.dist-info'
            info.mkdir(exist_ok=True)
            (info / 'INSTALLER').touch()
            (info / 'RECORD').touch()
        if label == 'compiled ops':
            (site / 'mmcv' / '_ext.abi.so').touch()
        return '["abi", "2.11.0", "cpu", false]'

    monkeypatch.setattr(bootstrap_env.Environment, 'run', run)
    return labels


def test_nothing_is_done_twice(tmp_path: Path, started: list[str]) -> None:
    seg = ['environment', 'build tools', 'mmcv without compiled ops', 'packages', 'health report']
    full = ['packages', 'asking torch', 'compiled ops', 'trying the compiled ops', 'health report']
    for level, expected in (('seg', seg), ('seg', []), ('full', full), ('full', []), ('seg', [])):
        bootstrap.bootstrap(tmp_path / 'venv', level)
        assert started == expected, level
        started.clear()


@pytest.mark.parametrize('stop', range(8))
def test_a_run_that_dies_at_any_step_is_completed_by_the_next(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    run = bootstrap_env.Environment.run

    def die(self: bootstrap_env.Environment, *arguments: str, **variables: str) -> str:
        if len(started) == stop:
            raise KeyboardInterrupt
        return run(self, *arguments, **variables)

    with monkeypatch.context() as patch:
        patch.setattr(bootstrap_env.Environment, 'run', die)
        with pytest.raises(KeyboardInterrupt):
            bootstrap.bootstrap(tmp_path / 'venv', 'full')
    before = list(started)
    started.clear()
    bootstrap.bootstrap(tmp_path / 'venv', 'full')
    steps = ['environment', 'build tools', 'mmcv without compiled ops', 'packages', 'asking torch']
    steps += ['compiled ops', 'trying the compiled ops', 'health report']
    assert before == steps[:stop]
    # a step of several commands starts from its first one
    assert started == steps[{1: 0, 5: 4, 6: 4}.get(stop, stop) :]


def test_ops_that_were_replaced_are_installed_again(tmp_path: Path, started: list[str]) -> None:
    bootstrap.bootstrap(tmp_path / 'venv', 'full')
    started.clear()
    next((tmp_path / 'venv').glob('lib/*/*/mmcv/_ext*')).unlink()
    bootstrap.bootstrap(tmp_path / 'venv', 'full')
    assert started == ['asking torch', 'compiled ops', 'trying the compiled ops']
