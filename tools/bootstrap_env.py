"""The environment that `bootstrap.py` fills: stamps, commands with progress, causes in words."""

import contextlib
import csv
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / 'constraints.txt'
ROOM_GB = 9  # .venv, and beside it the downloads that pip unpacks into it
FULL_BYTES = 32 << 20
HEARTBEAT_S = 30
STATE = '.vit5_dense'

# Variables that would put packages elsewhere, or compile mmcv's ops where they are not wanted.
UNWANTED = {
    'FORCE_CUDA',
    'MMCV_WITH_OPS',
    'PIP_NO_BUILD_ISOLATION',
    'PIP_PREFIX',
    'PIP_ROOT',
    'PIP_TARGET',
    'PIP_USER',
    'PYTHONHOME',
    'PYTHONPATH',
}
NO_NETWORK = re.compile(
    'NewConnectionError|ConnectTimeoutError|ReadTimeoutError|NameResolutionError|ProxyError|'
    'SSLError|IncompleteRead|Max retries exceeded|Network is unreachable|Read timed out|'
    'Connection (refused|reset|aborted)|Temporary failure in name resolution'
)


class BootstrapError(Exception):
    """What went wrong and what to do, in one line."""


def fingerprint(*parts: str) -> str:
    """A short hash that tells whether what a step depends on has changed."""
    return hashlib.sha256('\n'.join(parts).encode()).hexdigest()[:16]


def explain(log: str, least_free: int) -> str:
    """The cause of a failed command, in words.

    Args:
        log: What the command printed.
        least_free: Fewest bytes that were free on the disk while it ran.
    """
    lines = [line.strip() for line in log.splitlines()]
    errors = [line for line in lines if line.startswith(('ERROR', 'Error', 'error', 'problem:'))]
    missing = re.search('No matching distribution found for ([^\n]+)', log)
    if re.search('No space left|Errno 28|Disk quota', log) or least_free < FULL_BYTES:
        return f'the disk is full; free about {ROOM_GB} GB'
    unmet = missing or 'ResolutionImpossible' in log
    if NO_NETWORK.search(log) and (unmet or NO_NETWORK.search('\n'.join(errors))):
        return 'the package index cannot be reached; check the network'
    if missing:
        return (
            f'the package index has no {missing[1].strip()} for this machine and Python '
            f'{sys.version_info[0]}.{sys.version_info[1]}; set PYTHON to another one'
        )
    if re.search('Killed signal|MemoryError|virtual memory exhausted', log):
        return 'not enough memory to compile; set MAX_JOBS=1'
    if 'Python.h: No such file' in log:
        return 'the headers of Python are missing; install python3-dev'
    if 'ensurepip' in log:
        return 'this Python cannot make environments; install python3-venv, or set PYTHON'
    return errors[-1] if errors else 'no message'


def check_compiler() -> None:
    """Try the C++ compiler on a file that needs C++17 and the headers of Python.

    Raises:
        BootstrapError: If there is none, or it does not work.
    """
    names = [os.environ.get('CXX'), 'c++', 'g++']
    found = [name.split() for name in names if name and shutil.which(name.split()[0])]
    if not found or not shutil.which((os.environ.get('CC') or 'gcc').split()[0]):
        raise BootstrapError(
            'no C++ compiler, and the ops of mmcv have to be compiled once; apt-get install g++'
        )
    command = [*found[0], '-std=c++17', '-fsyntax-only', '-I', sysconfig.get_path('include')]
    source = '#include <optional>\n#include <Python.h>\n'
    tried = subprocess.run(
        [*command, '-x', 'c++', '-'], input=source, text=True, capture_output=True
    )
    if tried.returncode:
        error = next((line for line in tried.stderr.splitlines() if 'error' in line), 'no message')
        hint = 'install python3-dev' if 'Python.h' in error else 'C++17 is needed'
        raise BootstrapError(f'the C++ compiler {found[0][0]} does not work ({error}); {hint}')


class Environment:
    """A virtual environment with a stamp for each finished step.

    Args:
        folder: Where it is or will be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / STATE
        self.tmp = self.state / 'tmp'
        self.python = folder / 'bin' / 'python'
        self.lock_file = -1

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no other run works here, then clear what an interrupted one left.

        Children inherit the lock: a killed run is over only when its pip is.

        Raises:
            BootstrapError: If the folder holds something that is not ours.
        """
        if not self.state.exists() and self.folder.exists() and any(self.folder.iterdir()):
            raise BootstrapError(f'{self.folder} was not made by make; move it away')
        self.state.mkdir(parents=True, exist_ok=True)
        self.lock_file = os.open(self.state / 'lock', os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f'waiting for another run in {self.folder}', flush=True)
            fcntl.flock(self.lock_file, fcntl.LOCK_EX)
        try:
            shutil.rmtree(self.tmp, ignore_errors=True)
            self.tmp.mkdir()
            if (self.state / 'busy').exists():
                repair(self.site())
                (self.state / 'busy').unlink()
            yield
        finally:
            os.close(self.lock_file)

    def clear(self) -> None:
        """Empty the folder, except for the lock that is held."""
        for path in [*self.folder.iterdir(), *self.state.iterdir()]:
            if path == self.state or path.name == 'lock':
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.tmp.mkdir()

    def site(self) -> Path:
        """The site-packages folder, whether or not it is there yet."""
        return next(self.folder.glob('lib/python3*/site-packages'), self.folder / 'site-packages')

    def distributions(self) -> list[str]:
        """Names of the dist-info folders: the versions installed, read without starting Python."""
        return sorted(path.name for path in self.site().glob('*.dist-info'))

    def stamp_of(self, step: str, key: str) -> dict[str, Any]:
        """The stamp of a finished step; empty if `key` has changed or a distribution has gone."""
        try:
            stamp = json.loads((self.state / f'{step}.json').read_text())
        except (OSError, ValueError):  # not there, or emptied by a power failure
            return {}
        if stamp['key'] != key or not self.python.exists():
            return {}
        return stamp if set(stamp['distributions']) <= set(self.distributions()) else {}

    def stamp(self, step: str, key: str, distributions: list[str], **facts: Any) -> None:
        """Note that a step is through, and the distributions that it relies on."""
        part = self.tmp / 'stamp'
        part.write_text(json.dumps({'key': key, 'distributions': distributions, **facts}))
        part.replace(self.state / f'{step}.json')

    def pip(self, label: str, *arguments: str, **variables: str) -> None:
        """Run pip so that an interrupted run is noticed and its half packages are dropped."""
        (self.state / 'busy').touch()
        self.run(label, str(self.python), '-m', 'pip', *arguments, **variables)
        (self.state / 'busy').unlink()

    def run(self, label: str, *command: str, **variables: str) -> str:
        """Run a command with its output in a log, and a line about its progress now and then.

        Args:
            label: What the user sees.
            command: Program and arguments.
            variables: Added to the environment.

        Returns:
            The log.

        Raises:
            BootstrapError: With the cause in words and the path of the log.
        """
        log = self.state / 'last.log'
        env = {name: value for name, value in os.environ.items() if name not in UNWANTED}
        env.update(
            PIP_CONSTRAINT=CONSTRAINTS.as_uri(),  # a URL: pip splits this variable at spaces
            PIP_DISABLE_PIP_VERSION_CHECK='1',
            PIP_NO_INPUT='1',
            TMPDIR=str(self.tmp),
            **variables,
        )
        with log.open('wb') as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(self.lock_file,),
                start_new_session=True,
            )
            try:
                least_free = self._watch(process, label, log)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        text = log.read_text(errors='replace')
        if process.returncode:
            raise BootstrapError(f'{label}: {explain(text, least_free)} (log: {log})')
        return text

    def _watch(self, process: 'subprocess.Popen[bytes]', label: str, log: Path) -> int:
        """Wait for a process and show that it lives; fewest free bytes seen meanwhile."""
        start = shown = time.monotonic()
        live = sys.stdout.isatty()
        least_free = shutil.disk_usage(self.state).free
        if not live:
            print(f'{label} ...', flush=True)
        while process.poll() is None:
            time.sleep(0.2)
            least_free = min(least_free, shutil.disk_usage(self.state).free)
            now = time.monotonic()
            if now - shown >= (1 if live else HEARTBEAT_S):
                shown = now
                self._show(f'{label} {_clock(now - start)}  {_last_line(log)}', live)
        took = _clock(time.monotonic() - start)
        if not process.returncode:
            self._show(f'{label}: done in {took}', live)
        print(flush=True, end='\n' if live else '')
        return least_free

    @staticmethod
    def _show(text: str, live: bool) -> None:
        width = shutil.get_terminal_size().columns - 1
        print(f'\r\x1b[K{text[:width]}' if live else text, end='' if live else '\n', flush=True)


def repair(site: Path) -> None:
    """Drop the record of every package that an interrupted pip left half installed.

    pip would take such a package for installed. It writes INSTALLER after the files of a package,
    and RECORD holds their sizes. Without its record a package is simply installed again.
    """
    for info in site.glob('*.dist-info'):
        if not (info / 'INSTALLER').is_file() or not _files_are_whole(info / 'RECORD'):
            shutil.rmtree(info)
    for left in site.glob('~*'):  # what pip had set aside to remove
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def _files_are_whole(record: Path) -> bool:
    if not record.is_file():
        return False
    with record.open(newline='') as file:
        for name, _, size in csv.reader(file):
            path = record.parent.parent / name
            if path.suffix == '.pyc':  # recorded without a size, and written anew at any time
                continue
            if not path.exists() or (size and path.stat().st_size != int(size)):
                return False
    return True


def _clock(seconds: float) -> str:
    return '{}m{:02}s'.format(*divmod(int(seconds), 60))


def _last_line(log: Path) -> str:
    with log.open('rb') as file:
        file.seek(max(0, log.stat().st_size - 2000))
        lines = file.read().decode(errors='replace').split('\n')
    return next((line.strip()[:70] for line in reversed(lines) if line.strip()), '')
