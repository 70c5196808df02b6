"""Large files from the web: whole or not there, and a broken transfer goes on where it ended."""

import json
import shutil
import time
from pathlib import Path

from mmengine.logging import print_log
from rich.progress import Progress, TaskID

from ..errors import UserError
from .http_range import Changed, Dropped, Note, ask, blocks, check_url, goes_on, validator_of

PAUSES = (1.0, 4.0, 15.0)  # s before another try; anew when a try gets further than all before


def require_space(folder: Path, needed: int, purpose: str) -> None:
    """Compare the free space of a disk with what is about to be written.

    Raises:
        UserError: If it is too little; with both numbers.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f'{folder} has {free} bytes free ({free / 1e9:.1f} GB), {purpose} needs {needed} '
            f'({needed / 1e9:.1f} GB): make room, or choose a folder on another disk'
        )


def note_of(part: Path) -> Path:
    """Where the note about a part is."""
    return part.with_name(f'{part.name}.json')


def size_of(path: Path) -> int:
    """Bytes in a file; 0 if there is none."""
    return path.stat().st_size if path.is_file() else 0


def read_note(path: Path, url: str) -> Note | None:
    """The note beside a part, if it is about this address and one can go on from it."""
    try:
        note = Note(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return note if note.url == url and note.size else None


def transfer(url: str, part: Path, progress: Progress, task: TaskID) -> None:
    """One try to complete a part.

    Raises:
        Changed: If the part is of another file than the server has.
        Dropped: If the connection ended before the file did.
        UserError: If the server refuses, or there is too little space.
        OSError: If the part cannot be written.
    """
    note_path = note_of(part)
    note = read_note(note_path, url)
    have = size_of(part) if note else 0
    if note and have == note.size:  # a run was killed before it gave the file its name
        return
    with ask(url, have, note) as response:
        if response.headers.get_content_type() == 'text/html':  # as of a network's log-in
            raise UserError(f'{url} cannot be downloaded: the server sends a web page instead')
        if response.status == 206:
            if not (note and have):
                raise UserError(f'{url} cannot be downloaded: the server sends a piece of it only')
            if not goes_on(response, have, note):
                raise Changed
        else:
            if have:
                print_log(f'{part.name}: the file has changed or the server cannot go on with it')
            length = response.headers.get('Content-Length', '')
            note = Note(url, validator_of(response), int(length) if length.isdecimal() else None)
            have = 0
        require_space(part.parent, (note.size or 0) - size_of(part), part.name)
        if not have:
            part.write_bytes(b'')  # before the note, which is never about an older part
            note_path.write_text(json.dumps(note._asdict()))
        progress.reset(task, total=note.size, completed=have)
        with part.open('ab') as file:
            for block in blocks(response):
                file.write(block)
                progress.update(task, advance=len(block))
    if note.size is not None and size_of(part) != note.size:
        raise Dropped(f'{size_of(part)} of {note.size} bytes came')


def download(url: str, path: Path, progress: Progress) -> None:
    """Fetch a file; it appears when it is whole.

    It grows in ``NAME.part`` beside ``NAME.part.json``, which stay after a failure or a kill: the
    next call goes on from there by HTTP's Range if the file is still the same on the server.

    Args:
        url: http or https.
        path: The file; its folder must exist.
        progress: Shows bytes, rate and time left.

    Raises:
        UserError: If it cannot be fetched or written.
    """
    check_url(url)
    part = path.with_name(f'{path.name}.part')
    task = progress.add_task(path.name, total=None)
    pauses, furthest = iter(PAUSES), 0
    try:
        while True:
            try:
                transfer(url, part, progress, task)
                break
            except Changed:
                print_log(f'{path.name}: the file has changed on the server, it starts again')
                part.unlink()
            except Dropped as error:
                if size_of(part) > furthest:
                    pauses, furthest = iter(PAUSES), size_of(part)
                pause = next(pauses, None)
                if pause is None:
                    raise UserError(
                        f'{url} cannot be downloaded: {error}. {part} is kept: the same command '
                        'goes on from there'
                    ) from error
                print_log(f'{path.name}: {error}; another try in {pause:.0f} s')
                time.sleep(pause)
        part.replace(path)
        note_of(part).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f'{part} cannot be written: {error.strerror}') from error
