"""Public data sets where the configs look for them: fetched, unpacked, counted."""

import argparse
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from mmengine.logging import print_log
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ..errors import UserError, make_folder
from .download import check_url, download
from .unpack import open_zip, top_folders, unpack


class Part(NamedTuple):
    """An archive of a data set.

    Attributes:
        url: Its official address.
        folder: The folder at its top, which goes below the root.
        counts: Patterns within that folder, and how many files must match each.
    """

    url: str
    folder: str
    counts: Mapping[str, int]

    def archive(self) -> str:
        """Name of the archive's file."""
        return PurePosixPath(urlsplit(self.url).path).name


def prepare_parser(
    description: str | None, root: str, parts: Sequence[Part]
) -> argparse.ArgumentParser:
    """Command line of the tools that prepare a data set."""
    names = ', '.join(part.archive() for part in parts)
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--root', type=Path, default=Path(root), help=f'its folder ({root})')
    parser.add_argument(
        '--zip',
        type=Path,
        nargs='+',
        default=[],
        metavar='FILE',
        help='archives that are here already, in any order; they are kept',
    )
    parser.add_argument(
        '--url',
        nargs='+',
        default=[part.url for part in parts],
        help=f'other addresses of {names}, in this order',
    )
    parser.add_argument('--keep-zip', action='store_true', help='keep what was downloaded')
    return parser


def check_counts(folder: Path, counts: Mapping[str, int], source: Path, remedy: str) -> None:
    """Count files.

    Args:
        folder: Where.
        counts: Patterns within it, and how many files must match each.
        source: What to name in the message.
        remedy: What the user can do.

    Raises:
        UserError: With the first number that is wrong.
    """
    for pattern, wanted in counts.items():
        found = sum(1 for path in folder.glob(pattern) if path.is_file() and path.stat().st_size)
        if found != wanted:
            raise UserError(
                f'{source} has {found} files {pattern} that are not empty, not {wanted}: {remedy}'
            )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; the system lets go of it however the process ends.

    Raises:
        UserError: If another run holds it.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise UserError(f'{folder}: another run prepares it; wait for its end') from error
    except OSError as error:  # network file systems that cannot lock a folder
        print_log(f'{folder} cannot be locked ({error.strerror}): run nothing else on it meanwhile')
    try:
        yield
    finally:
        os.close(handle)


def match_archives(archives: Sequence[Path], parts: Sequence[Part]) -> dict[str, Path]:
    """Which of the user's archives holds the folder of which part.

    Raises:
        UserError: If one cannot be read, or holds none or one that another holds as well.
    """
    found: dict[str, Path] = {}
    for archive in archives:
        with open_zip(archive) as file:
            tops = top_folders(file)
        folders = [part.folder for part in parts if part.folder in tops]
        if not folders:
            wanted = ', '.join(part.folder for part in parts)
            raise UserError(f'--zip {archive} has none of the folders {wanted}')
        for folder in folders:
            if folder in found:
                raise UserError(f'--zip {found[folder]} and {archive} both have {folder}')
            found[folder] = archive
    return found


def is_there(root: Path, part: Part) -> bool:
    """Whether the folder of a part is whole already.

    Raises:
        UserError: If there is one that is not.
    """
    folder = root / part.folder
    if not folder.exists():
        return False
    check_counts(folder, part.counts, folder, 'move it away or delete it, and run this again')
    return True


def prepare(
    parts: Sequence[Part],
    root: Path,
    archives: Sequence[Path] = (),
    urls: Sequence[str] = (),
    keep: bool = False,
) -> list[Path]:
    """Bring all parts of a data set below a folder; those that are there are left alone.

    Args:
        parts: What it consists of.
        root: Folder; made if need be.
        archives: Zip files of the user's, taken instead of downloads and kept.
        urls: Address of each part.
        keep: Keep downloaded archives in ``root``.

    Returns:
        The folder of each part.

    Raises:
        UserError: If an archive cannot be had, is broken or holds another number of files.
    """
    if len(urls) != len(parts):
        names = ', '.join(part.archive() for part in parts)
        raise UserError(f'--url needs {len(parts)} addresses ({names}), not {len(urls)}')
    for url in urls:
        check_url(url)
    local = match_archives(archives, parts)
    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with locked(make_folder(root)):
        missing = [not is_there(root, part) for part in parts]
        for part, url, lacks in zip(parts, urls, missing, strict=True):
            if not lacks:
                print_log(f'{root / part.folder}: already there and whole')
                continue
            archive = local.get(part.folder, root / part.archive())
            fetched = not archive.exists()
            with Progress(TextColumn('{task.description}'), BarColumn(), *columns) as progress:
                if fetched:
                    print_log(f'downloading {url} to {archive}')
                    download(url, archive, progress)
                else:
                    print_log(f'taking {archive}')

                def check(folder: Path, part: Part = part, archive: Path = archive) -> None:
                    remedy = 'another set, or a part of it: replace or delete it'
                    check_counts(folder, part.counts, archive, remedy)

                unpack(archive, root, part.folder, check, progress)
            if fetched and not keep:
                archive.unlink()
            print_log(f'{root / part.folder}: whole')
    return [root / part.folder for part in parts]
