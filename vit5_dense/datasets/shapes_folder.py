"""Put a set of demo scenes in its place all at once: whoever looks sees a whole set or none.

A set grows in ``<out>.partial``, locked by the process that writes it, and is renamed when it is
complete. What a killed run left there is swept away by the next one.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import UserError
from .shapes_files import SPLITS, Record, describe, write_set

_OURS = re.compile(
    r'(images|annotations)/(train|val)/\d{6,}\.png|instances_(train|val)\.json'
    r'|meta\.json'
)
_BYTES_PER_SCENE = 45_000  # picture, labels and instances, measured
_LOCK_WAIT = 3.0  # s: the workers of a killed run finish the scene they are at


def _refuse_foreign(folder: Path) -> None:
    """Raise UserError if the folder holds a file that no set of scenes has."""
    for path in folder.rglob('*'):
        if not path.is_dir() and not _OURS.fullmatch(path.relative_to(folder).as_posix()):
            raise UserError(
                f'{path} does not belong to a set of demo scenes; nothing was touched,'
                ' choose another --out'
            )


def _read_meta(folder: Path) -> Record | None:
    try:
        meta = json.loads((folder / 'meta.json').read_text())
    except (FileNotFoundError, ValueError):
        return None
    return meta if isinstance(meta, dict) and 'generator' in meta else None


def _is_done(out: Path, wanted: Record, force: bool) -> bool:
    """Whether ``out`` is the wanted set already; False means that it may be written.

    Raises:
        UserError: it holds something else, which only the user may remove.
    """
    if out.is_mount():
        raise UserError(f'{out} is a mount point, which cannot be renamed; choose a folder in it')
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not out.is_dir():
        raise UserError(f'{out} is a file; choose another --out')
    meta = _read_meta(out)
    if meta is None or meta['generator'] != wanted['generator']:
        raise UserError(
            f'{out} is not empty and has no meta.json of a set of demo scenes; nothing'
            ' was touched, choose another --out'
        )
    if force:
        _refuse_foreign(out)
        return False
    for key in ('version', 'seed', 'counts'):
        if meta.get(key) != wanted[key]:
            raise UserError(
                f'{out} holds a set with {key} {meta.get(key)}, not {wanted[key]}; add'
                ' --force to replace it, or choose another --out'
            )
    for split in SPLITS:
        for kind in ('images', 'annotations'):
            folder, count = out / kind / split, wanted['counts'][split]
            found = sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
            if found != count:
                raise UserError(
                    f'{folder} holds {found} files instead of {count}; add --force to'
                    ' write the set anew'
                )
        if not (out / f'instances_{split}.json').is_file():
            raise UserError(
                f'{out}/instances_{split}.json is missing; add --force to write the set anew'
            )
    return True


def _lock(folder: Path) -> int:
    """Create and lock a folder; returns the handle that holds the lock until it is closed.

    The lock dies with the process and its workers, however they end, so none is ever stale.
    """
    deadline = time.monotonic() + _LOCK_WAIT
    while True:
        folder.mkdir(exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # its last owner may have renamed it between open and lock
            if folder.exists() and os.path.samestat(os.fstat(handle), folder.stat()):
                return handle
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(handle)
                raise UserError(
                    f'{folder}: another run is writing this set; wait for its end'
                ) from None
            time.sleep(0.05)
        os.close(handle)


@contextlib.contextmanager
def _locked_empty(folder: Path) -> Iterator[None]:
    """The folder, empty and ours alone; gone afterwards unless it was renamed."""
    if folder.exists():
        _refuse_foreign(folder)
    handle = _lock(folder)
    try:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        yield
    finally:
        if folder.exists() and os.path.samestat(os.fstat(handle), folder.stat()):
            shutil.rmtree(folder)
        os.close(handle)


def _move(partial: Path, out: Path, replaced: Path) -> None:
    """Rename the finished set; an older one is kept until the new one is in its place."""
    if out.exists():
        out.rename(replaced)
    partial.rename(out)
    if replaced.exists():
        shutil.rmtree(replaced)


def build_set(
    out: Path,
    seed: int,
    counts: dict[str, int],
    workers: int,
    force: bool,
    progress: Callable[[int, int], None],
) -> bool:
    """Make sure that ``out`` holds the set of a seed.

    Args:
        out: Folder of the set.
        seed: Seed of the whole set.
        counts: Pictures per split.
        workers: Processes; the files do not depend on it.
        force: Replace a different or damaged set of scenes; other files are never replaced.
        progress: Called with the number of scenes done and wanted.

    Returns:
        False if the set was there already.

    Raises:
        UserError: the place is taken or too small and nothing was touched, or writing failed and
            nothing is left behind.
    """
    out = out.resolve()
    wanted = describe(seed, counts)
    if _is_done(out, wanted, force):
        return False
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'{out.parent} cannot be created: {error}; choose another --out') from error
    need, free = sum(counts.values()) * _BYTES_PER_SCENE, shutil.disk_usage(out.parent).free
    if free < need:
        raise UserError(
            f'{out.parent} has {free / 1e6:.0f} MB free, the set takes about'
            f' {need / 1e6:.0f} MB; choose another --out or smaller counts'
        )
    partial, replaced = out.with_name(out.name + '.partial'), out.with_name(out.name + '.replaced')
    with _locked_empty(partial):
        if _is_done(out, wanted, force):
            return False  # another run was faster
        if replaced.exists():
            _refuse_foreign(replaced)
            shutil.rmtree(replaced)
        try:
            write_set(partial, seed, counts, workers, progress)
            _move(partial, out, replaced)
        except OSError as error:
            raise UserError(f'{out} could not be written, nothing was left: {error}') from error
    return True
