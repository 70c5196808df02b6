"""Picture files that a command line names, and names for what comes of them."""

import glob
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from .errors import UserError
from .pictures import SUFFIXES


def find_pictures(patterns: Sequence[str]) -> list[Path]:
    """Files that paths, folders and globs name, each once, in order.

    Args:
        patterns: Files are taken as they are, folders for the picture files in them.

    Raises:
        UserError: If a pattern matches nothing.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
        else:
            files = [path] if path.is_file() else sorted(map(Path, glob.glob(pattern)))
            files = [file for file in files if file.is_file()]
        if not files:
            raise UserError(f'{pattern} matches no picture ({", ".join(SUFFIXES)})')
        found.update(dict.fromkeys(files))
    return list(found)


def unique_names(files: Sequence[Path]) -> dict[Path, str]:
    """A name for the results of each picture: its own, and parts of its path where need be."""
    names = {path: path.stem for path in files}
    for depth in range(1, 1 + max(len(path.parts) for path in files)):
        taken = Counter(names.values())
        if max(taken.values()) == 1:
            break
        names = {
            path: name
            if taken[name] == 1
            else '_'.join(path.relative_to(path.anchor).parts[-depth:])
            for path, name in names.items()
        }
    return names


def image_ids(paths: Iterable[Path]) -> dict[Path, int]:
    """COCO's ids of pictures, each another: their names if all are numbers, else 1, 2, 3 ..."""
    files = list(paths)
    if all(path.stem.isdecimal() for path in files):
        ids = {path: int(path.stem) for path in files}
        if len(set(ids.values())) == len(files):
            return ids
    return {path: number for number, path in enumerate(files, 1)}
