"""One run at a time in a work dir, one process at a time at a download."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mmengine.logging import print_log

from .errors import UserError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

NAME = '.lock'


@contextmanager
def sole_user(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; the system lets go of it however the process ends.

    Raises:
        UserError: If another process holds it; with that process' number.
    """
    if fcntl is None:
        yield
        return
    with (folder / NAME).open('a+') as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            file.seek(0)
            raise UserError(
                f'{folder} is in use by another run (process {file.read().strip() or "unknown"}): '
                'wait for it, stop it, or take another --work-dir'
            ) from error
        except OSError as error:  # network file systems that cannot lock
            print_log(f'{folder} cannot be locked ({error.strerror}): start no other run in it')
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Wait until no other process is in here, where the file system can lock.

    Args:
        path: File to lock, which is there meanwhile only.
    """
    if fcntl is None:
        yield
        return
    with path.open('a') as file:
        with suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
