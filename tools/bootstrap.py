"""Bring `.venv` to the tested set of versions; `make demo`, `make test` and `make lint` call it.

Every step leaves a stamp when it is through: a second run does nothing twice, and an interrupted
one goes on where it was. Standard library only, and no syntax in this file beyond Python 3.6, so
that an older interpreter reads far enough to say what is missing.

Examples:
    python3 tools/bootstrap.py --level seg
    python3 tools/bootstrap.py --level full
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - the reason for the old syntax
    sys.stderr.write(
        f'error: Python 3.10 or newer is needed, {sys.executable} is {sys.version.split()[0]}; '
        'name another one, e.g. make PYTHON=python3.11 demo\n'
    )
    sys.exit(2)

import argparse
import json
import os
import re
import shutil
import signal
import sysconfig
import tarfile
from pathlib import Path

from bootstrap_env import (
    CONSTRAINTS,
    ROOM_GB,
    ROOT,
    BootstrapError,
    Environment,
    check_compiler,
    fingerprint,
)

# The extras of setup.py that a level installs. Only 'full' has the compiled ops of mmcv.
FULL = ['app', 'det', 'export', 'lora', 'seg', 'test']
EXTRAS = {'seg': ['seg'], 'lint': ['seg', 'test'], 'full': FULL}
BUILD_TOOLS = ('pip', 'setuptools', 'wheel', 'packaging', 'ninja')
PROBE = """
import json, subprocess, sysconfig, torch
from torch.utils.cpp_extension import CUDA_HOME
gpu, kind = torch.cuda.is_available(), 'cpu'
if gpu and torch.version.cuda and CUDA_HOME:
    text = subprocess.check_output([CUDA_HOME + '/bin/nvcc', '--version'], text=True)
    if 'release ' + torch.version.cuda.split('.')[0] + '.' in text:
        kind = 'cuda%s-sm%d%d' % (torch.version.cuda, *torch.cuda.get_device_capability())
print(json.dumps([sysconfig.get_config_var('SOABI'), torch.__version__, kind, gpu]))
"""
VERIFY = """
import torch
from mmcv.ops import nms
boxes = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 8], [20, 20, 29, 29]])
assert nms(boxes, torch.tensor([0.5, 0.9, 0.7]), 0.5)[1].tolist() == [1, 2]
"""


def pins() -> dict[str, str]:
    """Versions in constraints.txt by name."""
    return dict(re.findall(r'^([\w.-]+)==([\w.]+)', CONSTRAINTS.read_text(), flags=re.MULTILINE))


def make_venv(env: Environment) -> None:
    """The environment itself with pip and the build tools of the tested set."""
    wanted = [f'{name}=={pins()[name]}' for name in BUILD_TOOLS]
    key = fingerprint(str(env.folder), *wanted)
    # Another interpreter than last time is a reason to start over only until packages are in.
    interpreter = fingerprint(key, sys.version)
    stamp = env.stamp_of('venv', key)
    filled = (env.state / 'packages.json').exists()
    if stamp and (filled or stamp['interpreter'] == interpreter):
        return
    # Started from the environment that is about to be replaced, only its base is there to the end.
    inside = Path(sys.prefix) == env.folder
    python = sys._base_executable if inside else sys.executable  # type: ignore[attr-defined]
    env.clear()
    env.run('environment', python, '-m', 'venv', str(env.folder))
    env.pip('build tools', 'install', *wanted)
    env.stamp('venv', key, [], interpreter=interpreter)


def install_mmcv(env: Environment) -> None:
    """mmcv without compiled ops, unless the tested version is there, with or without.

    By itself, because it has to be built in isolation, where it finds no torch to compile against,
    and past pip's wheel cache, where a wheel with the ops of another torch may lie.
    """
    wanted = f'onedl-mmcv=={pins()["onedl-mmcv"]}'
    record = f'onedl_mmcv-{pins()["onedl-mmcv"]}.dist-info'
    if env.stamp_of('mmcv', wanted):
        return
    flags = ('--no-deps', '--no-cache-dir', '--no-binary', 'onedl-mmcv')
    env.pip('mmcv without compiled ops', 'install', *flags, wanted)
    env.stamp('mmcv', wanted, [record])


def install_packages(env: Environment, level: str) -> None:
    """This package, editable, with the extras of a level at the tested versions."""
    version = re.search('__version__ = .*', (ROOT / 'vit5_dense' / '__init__.py').read_text())
    files = (CONSTRAINTS, ROOT / 'setup.py', ROOT / 'vit5_dense' / 'versions.py')
    key = fingerprint(str(version and version[0]), *(path.read_text() for path in files))
    stamp = env.stamp_of('packages', key)
    if set(EXTRAS[level]) <= set(stamp.get('extras', ())):
        return
    free = shutil.disk_usage(env.folder).free / 1e9
    if not stamp and free < ROOM_GB:
        print(f'note: this takes up to {ROOM_GB} GB, and {env.folder} has {free:.1f} GB free')
    env.pip('packages', 'install', '-e', f'.[{",".join(EXTRAS[level])}]')
    env.stamp('packages', key, env.distributions(), extras=EXTRAS[level])


def wheel_cache() -> Path:
    """The folder of ours that keeps the wheels with compiled ops."""
    base = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    return Path(base) / 'vit5_dense' / 'wheels'


def wheel_name(soabi: str, torch: str) -> str:
    """What a compiled wheel depends on: mmcv, Python with its platform, torch."""
    return f'mmcv-{pins()["onedl-mmcv"]}-{soabi}-torch-{torch}'


def ops_compiled(env: Environment) -> bool:
    """Whether the mmcv that is installed has compiled ops."""
    return any(env.site().glob('mmcv/_ext*.so'))


def install_ops(env: Environment) -> None:
    """mmcv with compiled ops: from the cache if a wheel for this very set is there, else built."""
    key = fingerprint(pins()['onedl-mmcv'], pins()['torch'])
    if env.stamp_of('ops', key) and ops_compiled(env):
        return
    answer = env.run('asking torch', str(env.python), '-c', PROBE)
    soabi, torch, kind, gpu = json.loads(answer.splitlines()[-1])
    if gpu and kind == 'cpu':
        print('note: a GPU, but no nvcc for the CUDA of torch: the ops are compiled for the CPU')
    cache = wheel_cache() / f'{wheel_name(soabi, torch)}-{kind}'
    if not from_cache(env, cache):
        wheel = build_wheel(env, cache.name, kind)
        install_wheel(env, wheel)
        keep_wheel(wheel, cache)
        shutil.rmtree(env.state / 'build')
    env.stamp('ops', key, [f'onedl_mmcv-{pins()["onedl-mmcv"]}.dist-info'])


def from_cache(env: Environment, cache: Path) -> bool:
    """Install the cached wheel, if there is one and its ops work; drop it if they do not."""
    wheel = next(cache.glob('*.whl'), None)
    if not wheel:
        return False
    try:
        install_wheel(env, wheel)
    except BootstrapError as error:
        print(f'note: building anew, since the wheel in {cache} does not work: {error}')
        wheel.unlink()
        return False
    return True


def install_wheel(env: Environment, wheel: Path) -> None:
    """Install a wheel in place of the mmcv that is there and run one of its ops."""
    env.pip('compiled ops', 'install', '--force-reinstall', '--no-deps', str(wheel))
    env.run('trying the compiled ops', str(env.python), '-c', VERIFY)


def build_wheel(env: Environment, name: str, kind: str) -> Path:
    """Compile in a folder that an interruption leaves as it is, so that ninja goes on there."""
    check_compiler()
    source = env.state / 'build' / name
    if not source.exists():
        flags = ('--no-deps', '--no-build-isolation', '--no-binary', 'onedl-mmcv')
        wanted = f'onedl-mmcv=={pins()["onedl-mmcv"]}'
        env.pip('source of mmcv', 'download', '-d', str(env.tmp), *flags, wanted)
        with tarfile.open(next(env.tmp.glob('onedl*mmcv*.tar.gz'))) as archive:
            archive.extractall(env.tmp / 'source')  # noqa: S202 - pip has checked its hash
        source.parent.mkdir(exist_ok=True)
        next((env.tmp / 'source').iterdir()).replace(source)
    jobs = os.environ.get('MAX_JOBS') or str(os.cpu_count())
    variables = {'MMCV_WITH_OPS': '1', 'MAX_JOBS': jobs}
    if kind == 'cpu':
        variables['CUDA_VISIBLE_DEVICES'] = ''
    flags = ('--no-deps', '--no-build-isolation', '--no-cache-dir', '-v', '-w', str(env.tmp))
    env.pip('compiling the ops of mmcv, once', 'wheel', *flags, str(source), **variables)
    return next(env.tmp.glob('onedl_mmcv-*.whl'))


def keep_wheel(wheel: Path, folder: Path) -> None:
    """Copy a wheel into the cache so that a half one is never seen there."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f'{wheel.name}.{os.getpid()}'
    shutil.copyfile(wheel, part)
    part.replace(folder / wheel.name)


def check_health(env: Environment) -> None:
    """Ask the health report once for each set of distributions."""
    key = fingerprint(*env.distributions(), str(ops_compiled(env)))
    if env.stamp_of('health', key):
        return
    env.run('health report', str(env.python), '-m', 'vit5_dense')
    env.stamp('health', key, [])


def bootstrap(folder: Path, level: str) -> None:
    """Do what is missing for a level.

    Raises:
        BootstrapError: What stands in the way.
    """
    env = Environment(folder)
    wheels = wheel_name(sysconfig.get_config_var('SOABI'), pins()['torch'])
    built = ops_compiled(env) or any(wheel_cache().glob(f'{wheels}*/*.whl'))
    if level == 'full' and not built:
        check_compiler()  # before the downloads, which take minutes
    with env.locked():
        make_venv(env)
        install_mmcv(env)
        install_packages(env, level)
        if level == 'full':
            install_ops(env)
        check_health(env)
    print(f'{folder} is ready ({level})')


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--level', choices=sorted(EXTRAS), required=True)
    parser.add_argument('--venv', type=Path, default=ROOT / '.venv', help='folder to fill')
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Fill the environment; 0 if it is ready, 1 with one line on stderr if it is not."""
    args = parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        bootstrap(args.venv.absolute(), args.level)
    except BootstrapError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('\ninterrupted; the same command goes on from here', file=sys.stderr)
        return 130
    except OSError as error:  # a full or read-only disk under our own files
        print(f'error: {error.filename or args.venv}: {error.strerror}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
