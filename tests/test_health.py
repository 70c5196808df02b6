import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vit5_dense import health, versions

REPO = Path(__file__).resolve().parents[1]
TORCH = """
__version__ = '2.11.0'
class zeros:
    def __init__(self, size): pass
    def numpy(self): pass
class cuda:
    device_count = staticmethod(lambda: 1)
    get_device_name = staticmethod(lambda index: 'Some GPU')
"""
Install = Callable[..., None]
Report = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Makes a distribution in the environment of `run`: its record, and a module with this code."""

    def make(dist: str, version: str, module: str, code: str = '') -> None:
        info = tmp_path / f'{dist.replace("-", "_")}-{version}.dist-info'
        info.mkdir()
        (info / 'METADATA').write_text(f'Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n')
        (tmp_path / module).mkdir(exist_ok=True)
        (tmp_path / module / '__init__.py').write_text(code)

    return make


@pytest.fixture
def install_core(install: Install) -> Callable[[], None]:
    """Makes a working core of the fork in the environment of `run`."""

    def make() -> None:
        install('torch', '2.11.0', 'torch', TORCH)
        install('timm', '1.0.31', 'timm')
        install('fvcore', '0.1.5.post20221221', 'fvcore')
        install('onedl-mmengine', '0.10.12', 'mmengine')

    return make


@pytest.fixture
def run(tmp_path: Path) -> Report:
    """Runs Python where nothing is installed but what `install` has made."""

    def call(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, '-S', *arguments]
        env = {'PYTHONPATH': f'{REPO}:{tmp_path}'}
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)

    return call


def lines(text: str, label: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip().startswith(label)]


def test_report_names_what_is_missing_with_the_tested_versions(run: Report) -> None:
    report = run('-m', 'vit5_dense')
    assert report.returncode == 1, report.stderr
    assert lines(report.stdout, 'problem:') == [
        'problem: not installed: torch, timm, fvcore, mmengine'
    ]
    mend = 'mend: python -m pip install torch==2.11.0 timm==1.0.31 fvcore==0.1.5.post20221221 '
    assert lines(report.stdout, 'mend:') == [f'    {mend}onedl-mmengine==0.10.12']


def test_import_without_core_ends_with_the_install_line(run: Report, install: Install) -> None:
    install('torch', '2.11.0', 'torch', TORCH)
    error = run('-c', 'import vit5_dense').stderr.splitlines()[-1]
    assert 'vit5_dense needs timm, fvcore, mmengine. Run: python -m pip install timm==' in error


def test_core_alone_is_usable_and_the_report_says_what_else_there_is(
    run: Report, install_core: Callable[[], None]
) -> None:
    install_core()
    report = run('-m', 'vit5_dense')
    assert report.returncode == 0, report.stdout + report.stderr
    assert 'CUDA devices: Some GPU' in report.stdout
    assert 'ready' in report.stdout
    row = lines(report.stdout, 'mmengine')[0].split()
    assert row == ['mmengine', '0.10.12', '0.10.12', 'onedl-mmengine']
    assert 'mend: python -m pip install onedl-mmcv==2.3.6' in report.stdout


def test_without_torch_onnxruntime_makes_a_machine_for_exported_models(
    run: Report, install: Install
) -> None:
    install('onnxruntime', '1.32.0', 'onnxruntime')
    report = run('-m', 'vit5_dense')
    assert report.returncode == 0, report.stdout + report.stderr
    assert 'exported models only, by python -m vit5_dense.runtime' in report.stdout
    assert lines(report.stdout, 'note:') == [
        'note:    not installed: torch, timm, fvcore, mmengine'
    ]


def test_with_torch_a_missing_onnxruntime_is_a_note(
    run: Report, install: Install, install_core: Callable[[], None]
) -> None:
    install_core()
    report = run('-m', 'vit5_dense')
    assert report.returncode == 0
    assert 'onnxruntime is not installed (only exported models need it)' in report.stdout
    install('onnxruntime', '1.32.0', 'onnxruntime', 'raise ImportError("broken")')
    report = run('-m', 'vit5_dense')
    assert report.returncode == 0
    assert 'note:    onnxruntime does not import: ImportError: broken' in report.stdout


def test_without_torch_the_import_works_and_names_say_what_they_need(run: Report) -> None:
    """Submodules that need no torch can be imported."""
    code = 'import vit5_dense.errors; print(vit5_dense.__version__); vit5_dense.ViT5'
    process = run('-c', code)
    assert process.stdout.strip()
    assert 'MissingDependencyError: vit5_dense needs torch, timm' in process.stderr


def test_two_owners_of_one_folder_are_a_problem(
    run: Report, install: Install, install_core: Callable[[], None]
) -> None:
    install_core()
    install('mmengine', '0.10.7', 'mmengine')
    report = run('-m', 'vit5_dense')
    assert report.returncode == 1
    assert 'problem: onedl-mmengine and mmengine both write the folder mmengine' in report.stdout
    assert 'uninstall -y onedl-mmengine mmengine && ' in report.stdout


def test_a_failing_import_is_a_problem_with_its_remedy(
    run: Report, install: Install, install_core: Callable[[], None]
) -> None:
    install_core()
    guard = "raise AssertionError('MMCV==9 is used but incompatible')"
    install('onedl-mmcv', '2.3.6', 'mmcv')
    install('onedl-mmsegmentation', '1.4.2', 'mmseg', guard)
    report = run('-m', 'vit5_dense')
    assert report.returncode == 1
    assert 'problem: mmseg.apis does not import: AssertionError: MMCV==9' in report.stdout
    assert 'onedl-mmsegmentation==1.4.2 --force-reinstall' in report.stdout


def test_detection_without_compiled_ops_is_a_problem(
    run: Report, install: Install, install_core: Callable[[], None]
) -> None:
    install_core()
    install('onedl-mmcv', '2.3.6', 'mmcv')
    install('onedl-mmdetection', '3.5.1', 'mmdet')
    report = run('-m', 'vit5_dense')
    assert report.returncode == 1
    assert lines(report.stdout, 'compiled ops') == ['compiled ops no']
    assert lines(report.stdout, 'mend:')[-1].endswith('--no-binary onedl-mmcv onedl-mmcv==2.3.6')


def test_upstream_is_compared_with_its_own_tested_set(run: Report, install: Install) -> None:
    install('mmengine', '0.10.7', 'mmengine')
    install('mmcv', '2.0.1', 'mmcv')
    report = run('-m', 'vit5_dense').stdout
    assert lines(report, 'torch ')[0].split() == ['torch', '-', '2.1.2', '-']
    assert lines(report, 'mmcv ')[0].split() == ['mmcv', '2.0.1', '2.1.0', 'mmcv', '(differs)']


def test_missing_ops_stop_with_a_line_that_keeps_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, 'mmcv._ext', None)
    monkeypatch.setattr(health, 'installed_distributions', lambda: {'mmcv': '2.1.0'})
    with pytest.raises(health.MissingDependencyError) as raised:
        health.require_compiled_ops()
    message = str(raised.value)
    assert message.startswith('detection needs the compiled ops of mmcv')
    assert message.endswith('--no-cache-dir --force-reinstall --no-binary mmcv mmcv==2.1.0')


def test_ops_are_not_compiled_for_a_torch_beyond_the_tested_one() -> None:
    assert 'install torch==2.11.0 torchvision' in versions.compiled_ops_line({'torch': '2.14.1'})
    for version in ('2.11.0+cu130', '2.9.1'):
        line = versions.compiled_ops_line({'torch': version, 'onedl-mmcv': '2.3.6'})
        assert line.startswith('python -m pip install setuptools==')


def test_missing_mmseg_stops_with_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, 'installed_distributions', dict)
    monkeypatch.setitem(sys.modules, 'mmseg.apis', None)
    with pytest.raises(health.MissingDependencyError, match='pip install onedl-mmsegmentation'):
        health.require_seg()


def test_a_library_that_the_system_lacks_is_named() -> None:
    error = ImportError('libGL.so.1: cannot open shared object file')
    assert health._remedy('mmcv', error, {}) == 'apt-get install -y libgl1 libglib2.0-0'


def test_half_removed_distribution_is_not_counted(install: Install, tmp_path: Path) -> None:
    install('onedl-mmcv', '2.3.6', 'mmcv')
    (tmp_path / '~nedl_mmcv-2.3.5.dist-info').mkdir()
    assert versions.installed_distributions([str(tmp_path)]) == {'onedl-mmcv': '2.3.6'}
