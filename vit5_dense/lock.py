"""One run at a time in a work dir."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        except BlockingIOError as error:
            file.seek(0)
            raise UserError(
                f'{folder} is in use by another run (process {file.read().strip() or "unknown"}): '
                'wait for it, stop it, or take another --work-dir'
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
