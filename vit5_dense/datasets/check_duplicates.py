"""Pictures that are in two splits."""

import hashlib
from pathlib import Path

from .check_report import Fault, Part
from .check_work import in_threads


def sha1(path: Path) -> bytes:
    """Digest of a file's bytes; no secret hangs on it."""
    return hashlib.sha1(path.read_bytes(), usedforsecurity=False).digest()


def pictures_of(part: Part) -> list[Path]:
    """Files of a split's pictures."""
    return [plan.path(job) for plan in part.plans for job in plan.jobs]


def duplicates(train: Part, other: Part) -> list[Fault]:
    """Pictures of another split whose bytes are those of a training picture.

    Only files of one length are read.
    """
    by_length: dict[int, list[Path]] = {}
    for path in pictures_of(train):
        by_length.setdefault(path.stat().st_size, []).append(path)
    pairs = [(path, by_length.get(path.stat().st_size, [])) for path in pictures_of(other)]
    wanted = list(dict.fromkeys(path for one, same in pairs if same for path in (one, *same)))
    digests = dict(zip(wanted, in_threads(sha1, wanted), strict=True))
    first = {digests[path]: path for _, same in pairs for path in reversed(same)}
    return [
        Fault(
            'warning',
            f'picture that is in train and {other.split}',
            other.split,
            str(path),
            f'the same bytes as {first[digests[path]]} of train',
        )
        for path, same in pairs
        if same and digests[path] in first
    ]
