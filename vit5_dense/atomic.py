"""Files that are there whole or not at all."""

import os
from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend

from .errors import UserError

SUFFIX = '.unfinished'


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file beside its place, force it to the disk and move it there.

    A kill or a full disk at any moment leaves what was at ``path`` before.

    Raises:
        UserError: If it cannot be written; what was written of it is removed.
    """
    unfinished = path.with_name(path.name + SUFFIX)
    try:
        with unfinished.open('wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise UserError(
            f'{path} ({len(content) / 2**20:.0f} MB) cannot be written: {error.strerror}. '
            'What was there before is as it was. Make room and run again; a training goes on with '
            '--resume'
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)  # an interruption leaves it as well
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name
    finally:
        os.close(folder)


class AtomicBackend(LocalBackend):
    """mmengine's local files, written atomically: ``backend_args=dict(backend='vit5_atomic')``."""

    def put(self, obj: bytes | memoryview, filepath: str | Path) -> None:
        """Write bytes."""
        path = Path(filepath)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, bytes(obj))

    def put_text(self, obj: str, filepath: str | Path, encoding: str = 'utf-8') -> None:
        """Write text."""
        self.put(obj.encode(encoding), filepath)


register_backend('vit5_atomic', AtomicBackend, force=True)
