import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

setuptools = pytest.importorskip('setuptools')

REPO = Path(__file__).resolve().parents[1]
CONFIGS = {
    path.relative_to(REPO / 'configs').as_posix(): path for path in REPO.glob('configs/**/*.py')
}
LEAVES = [name for name in CONFIGS if '/' not in name]
SOURCES = ('setup.py', 'pyproject.toml', 'MANIFEST.in', 'README.md', 'vit5_dense', 'configs')
SOURCES += ('constraints.txt', 'constraints-upstream.txt')


def python(*arguments: str, cwd: Path, **variables: str) -> str:
    """Output of this interpreter, or of the one given as PYTHON, in another folder."""
    command = [variables.pop('PYTHON', sys.executable), *arguments]
    env = {**os.environ, 'OMP_NUM_THREADS': '1', **variables}
    process = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope='module')
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository in which a build leaves no trace in the real one."""
    copy = tmp_path_factory.mktemp('source')
    for name in SOURCES:
        path = REPO / name
        if path.is_dir():
            ignore = shutil.ignore_patterns('__pycache__')
            shutil.copytree(path, copy / name, symlinks=True, ignore=ignore)
        elif path.exists():
            shutil.copy(path, copy / name)
    return copy


def build_wheel(source: Path, out: Path) -> Path:
    code = f'from setuptools.build_meta import build_wheel as b; b({str(out)!r})'
    python('-c', code, cwd=source)
    (wheel,) = out.glob('*.whl')
    return wheel


@pytest.fixture(scope='module')
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the repository."""
    return build_wheel(source, tmp_path_factory.mktemp('wheel'))


def test_wheel_carries_every_config_and_the_tested_versions(wheel: Path) -> None:
    assert LEAVES
    with zipfile.ZipFile(wheel) as archive:
        for name, path in CONFIGS.items():
            assert archive.read(f'vit5_dense/.mim/configs/vit5/{name}') == path.read_bytes()
        for name in ('constraints.txt', 'constraints-upstream.txt'):
            assert archive.read(f'vit5_dense/.mim/{name}') == (REPO / name).read_bytes()
        assert archive.read('vit5_dense/.mim/model-index.yml')
        top = {name.split('/')[0] for name in archive.namelist()}
    assert {name for name in top if not name.endswith('.dist-info')} == {'vit5_dense'}


def test_wheel_from_the_source_archive_is_the_same(
    source: Path, wheel: Path, tmp_path: Path
) -> None:
    code = f'from setuptools.build_meta import build_sdist as b; b({str(tmp_path)!r})'
    python('-c', code, cwd=source)
    shutil.unpack_archive(next(tmp_path.glob('*.tar.gz')), tmp_path / 'unpacked')
    (unpacked,) = (tmp_path / 'unpacked').iterdir()
    again = build_wheel(unpacked, tmp_path)
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_configs_of_a_wheel_resolve_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    """As a base of a config of another project, and through mmengine's get_config."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / 'site')
    for name in LEAVES:
        (tmp_path / name).write_text(f"_base_ = ['vit5_dense::{name}']\nmine = 1\n")
    code = f"""
import vit5_dense
from mmengine.config import Config
from mmengine.hub import get_config
for name in {LEAVES!r}:
    config = get_config('vit5_dense::' + name)
    assert config.filename.startswith({str(tmp_path / 'site')!r}), config.filename
    leaf = Config.fromfile({str(tmp_path)!r} + '/' + name)
    assert leaf.pop('mine') == 1
    assert leaf.to_dict() == config.to_dict(), name
    print(name)
"""
    out = python('-c', code, cwd=Path('/'), PYTHONPATH=str(tmp_path / 'site'))
    assert [line for line in out.split() if line in LEAVES] == LEAVES  # mmdet prints as well


def test_configs_of_an_editable_install_resolve_from_any_folder(tmp_path: Path) -> None:
    """The record of such an install is in site-packages, and the package is not beside it."""
    info = tmp_path / 'vit5_dense-0.1.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: vit5_dense\nVersion: 0.1.0\n')
    (info / 'top_level.txt').write_text('vit5_dense\n')
    code = f"""
import vit5_dense
from mmengine.hub import get_config
print(get_config('vit5_dense::{LEAVES[0]}').filename)
"""
    out = python('-c', code, cwd=Path('/'), PYTHONPATH=f'{tmp_path}:{REPO}')
    assert Path(out.strip()).resolve() == CONFIGS[LEAVES[0]]


@pytest.fixture
def requirements(source: Path, tmp_path: Path) -> Callable[..., dict[str, list[str]]]:
    """Requirements by extra ('' for the core) in an environment with the given distributions.

    As pip does it: built by the environment's interpreter, with a PYTHONPATH that brings setuptools
    and hides site-packages.
    """

    def read(*installed: str) -> dict[str, list[str]]:
        environment = tmp_path / 'environment'
        venv.create(environment, symlinks=True)
        site = next(environment.glob('lib/python3*/site-packages'))
        for name, version in (spec.split('==') for spec in installed):
            info = site / f'{name.replace("-", "_")}-{version}.dist-info'
            info.mkdir()
            text = f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n'
            (info / 'METADATA').write_text(text)
        only_setuptools = tmp_path / 'overlay'
        only_setuptools.mkdir()
        for path in Path(setuptools.__file__).parents[1].glob('*'):
            if path.name.startswith(('setuptools', 'pkg_resources', '_distutils_hack')):
                (only_setuptools / path.name).symlink_to(path)
        hide = f'import sys; sys.path[:] = [path for path in sys.path if path != {str(site)!r}]'
        (only_setuptools / 'sitecustomize.py').write_text(hide)
        interpreter = str(environment / 'bin' / 'python')
        arguments = ('setup.py', '-q', 'egg_info', '--egg-base', str(tmp_path))
        overlay = str(only_setuptools)
        python(*arguments, cwd=source, PYTHON=interpreter, PYTHONPATH=overlay)
        groups: dict[str, list[str]] = {'': []}
        extra = ''
        for line in (tmp_path / 'vit5_dense.egg-info' / 'requires.txt').read_text().splitlines():
            if line.startswith('['):
                extra = line.strip('[]')
                groups[extra] = []
            elif line:
                groups[extra].append(line)
        return groups

    return read


TORCH = ['torch>=2.1', 'timm>=1.0', 'fvcore', 'safetensors']


def test_exported_models_need_no_torch_and_no_package_of_openmmlab(
    requirements: Callable[..., dict],
) -> None:
    found = requirements()
    assert found[''] == ['numpy', 'Pillow>=10.1']
    assert found['runtime'] == ['onnxruntime']


def test_extras_that_train_bring_torch(requirements: Callable[..., dict]) -> None:
    found = requirements()
    assert found['torch'] == TORCH
    for extra in ('seg', 'det', 'lora'):
        assert found[extra][:4] == TORCH


def test_extras_name_the_fork_where_nothing_is_installed(
    requirements: Callable[..., dict],
) -> None:
    seg = ['onedl-mmengine', 'onedl-mmcv', 'onedl-mmsegmentation', 'ftfy', 'regex']
    det = ['onedl-mmengine', 'onedl-mmcv', 'onedl-mmdetection', 'pycocotools', 'faster-coco-eval']
    found = requirements()
    assert found['seg'] == [*TORCH, *seg]
    assert found['det'] == [*TORCH, *det]


def test_extras_take_any_version_of_the_fork(requirements: Callable[..., dict]) -> None:
    found = requirements('onedl-mmengine==0.10.10', 'onedl-mmcv==2.3.4')
    assert found['seg'][4:7] == ['onedl-mmengine', 'onedl-mmcv', 'onedl-mmsegmentation']


def test_extras_never_replace_upstream(requirements: Callable[..., dict]) -> None:
    found = requirements('mmengine==0.10.5', 'mmcv==2.2.0', 'mmdet==3.3.0')
    assert found['seg'] == [*TORCH, 'mmsegmentation>=1.2.2', 'ftfy', 'regex']
    assert found['det'] == [*TORCH, 'pycocotools', 'faster-coco-eval']


def test_extras_add_nothing_to_a_conflict(requirements: Callable[..., dict]) -> None:
    found = requirements('mmengine==0.10.5', 'onedl-mmengine==0.10.12')
    assert found['seg'] == [*TORCH, 'ftfy', 'regex']
