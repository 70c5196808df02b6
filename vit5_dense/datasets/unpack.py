"""Zip archives from elsewhere: one folder of them appears, whole and checked, or nothing does."""

import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from zipfile import ZipFile, ZipInfo

from rich.progress import Progress

from ..errors import UserError
from .download import require_space

CLUSTER = 4096  # bytes that a file system hands out at once


@contextmanager
def open_zip(archive: Path) -> Iterator[ZipFile]:
    """An archive to read, with its faults as one message.

    Raises:
        UserError: If it is missing, broken, cut short or needs a password.
    """
    try:
        with ZipFile(archive) as file:
            yield file
    except UserError:
        raise
    except OSError as error:
        raise UserError(f'{archive} cannot be unpacked: {error}') from error
    except Exception as error:  # a damaged archive makes the readers raise anything
        raise UserError(
            f'{archive} is no whole zip archive ({error}): delete it and fetch it again'
        ) from error


def danger(member: ZipInfo) -> str | None:
    """Why a member must not be written: it would land, or lead, outside the folder."""
    path = PureWindowsPath(member.filename)  # which knows both slashes, and drives
    if path.anchor:
        return 'has an absolute path'
    if '..' in path.parts:
        return 'leads out of its folder'
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return 'is a link or a device'
    return None


def members_of(file: ZipFile, name: str) -> list[ZipInfo]:
    """Members of an archive below one of its folders.

    Raises:
        UserError: If any member is dangerous, or there is no such folder.
    """
    for member in file.infolist():
        if reason := danger(member):
            raise UserError(
                f'{file.filename}: member {member.filename!r} {reason}; nothing was unpacked: '
                'fetch the archive from a source that you trust'
            )
    members = [member for member in file.infolist() if member.filename.startswith(f'{name}/')]
    if not members:
        raise UserError(
            f'{file.filename} has no folder {name}, but {", ".join(top_folders(file)) or "nothing"}'
        )
    return members


def top_folders(file: ZipFile) -> list[str]:
    """The first parts of all members' paths, each once."""
    return list(dict.fromkeys(re.split(r'[/\\]', name)[0] for name in file.namelist()))


def unpack(
    archive: Path, folder: Path, name: str, check: Callable[[Path], None], progress: Progress
) -> Path:
    """Unpack one folder of an archive; every member's checksum is compared on the way.

    It grows in ``NAME.unpacking`` beside its place, is checked and then renamed. What a killed run
    left there is swept away.

    Args:
        archive: Zip file.
        folder: Where to, existing; ``folder/name`` must not be there.
        name: Folder at the top of the archive.
        check: Called with the new folder before it takes its place; raises if it is not right.
        progress: Shows bytes, rate and time left.

    Returns:
        ``folder/name``.

    Raises:
        UserError: If the archive is broken or dangerous, there is too little space or writing
            fails; nothing is left.
    """
    temporary = folder / f'{name}.unpacking'
    with open_zip(archive) as file:
        members = members_of(file, name)
        size = sum(member.file_size for member in members)
        if temporary.exists():
            shutil.rmtree(temporary)
        needed = sum(-(-member.file_size // CLUSTER) * CLUSTER for member in members)
        require_space(folder, needed, f'unpacking {archive.name}')
        task = progress.add_task(f'unpacking {archive.name}', total=size)
        try:
            for member in members:
                file.extract(member, temporary)
                progress.update(task, advance=member.file_size)
            check(temporary / name)
            (temporary / name).rename(folder / name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder / name
