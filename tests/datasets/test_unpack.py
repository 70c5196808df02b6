import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import pytest
from rich.progress import Progress

from vit5_dense.datasets import download as space
from vit5_dense.datasets.unpack import unpack
from vit5_dense.errors import UserError

FILES = {'set/a.txt': b'one' * 1000, 'set/deep/b.txt': b'two', 'set/empty.txt': b''}
Members = dict[str | ZipInfo, bytes]


def pack(path: Path, members: Members | None = None) -> Path:
    with ZipFile(path, 'w', ZIP_DEFLATED) as file:
        for name, content in (FILES if members is None else members).items():
            file.writestr(name, content)
    return path


def take(archive: Path, check: Callable[[Path], None] = lambda folder: None) -> Path:
    with Progress(disable=True) as progress:
        return unpack(archive, archive.parent, 'set', check, progress)


def refused(archive: Path) -> str:
    """The message; nothing but the archive may be there."""
    with pytest.raises(UserError) as caught:
        take(archive)
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    return str(caught.value)


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob('*') if path.is_file()]
    return {str(path.relative_to(folder.parent)): path.read_bytes() for path in files}


def test_one_folder_of_an_archive_is_unpacked(tmp_path: Path) -> None:
    archive = pack(tmp_path / 'a.zip', {**FILES, '__MACOSX/x': b'', 'settings/y': b''})
    assert content(take(archive)) == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ['a.zip', 'set']


def test_the_progress_counts_bytes(tmp_path: Path) -> None:
    archive = pack(tmp_path / 'a.zip')
    with Progress(disable=True) as progress:
        unpack(archive, tmp_path, 'set', lambda folder: None, progress)
    (task,) = progress.tasks
    assert (task.completed, task.total) == (3003, 3003)


def test_the_check_sees_the_files_before_they_take_their_place(tmp_path: Path) -> None:
    archive = pack(tmp_path / 'a.zip')

    def check(folder: Path) -> None:
        assert content(folder) == FILES
        assert not (tmp_path / 'set').exists()
        raise UserError('too few')

    with pytest.raises(UserError, match='too few'):
        take(archive, check)
    assert [path.name for path in tmp_path.iterdir()] == ['a.zip']


@pytest.mark.parametrize(
    'name',
    [
        '../evil.txt',
        'set/../../evil.txt',
        '/tmp/evil.txt',
        'C:\\evil.txt',
        '\\evil',
        'set\\..\\..\\e',
    ],
)
def test_members_that_lead_outside_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / 'in').mkdir()
    message = refused(pack(tmp_path / 'in' / 'a.zip', {**FILES, name: b'evil'}))
    assert 'evil' in message or '..' in message
    assert [path.name for path in tmp_path.iterdir()] == ['in']


@pytest.mark.parametrize('kind', [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(tmp_path: Path, kind: int) -> None:
    link = ZipInfo('set/link')
    link.create_system, link.external_attr = 3, (kind | 0o777) << 16
    message = refused(pack(tmp_path / 'a.zip', {**FILES, link: b'/etc', 'set/link/x': b''}))
    assert "'set/link' is a link or a device" in message


def test_an_archive_cut_short_or_damaged_anywhere_leaves_nothing(tmp_path: Path) -> None:
    """A byte that no checksum covers may change, but then the files are right."""
    archive = pack(tmp_path / 'a.zip')
    whole = archive.read_bytes()
    for end in range(0, len(whole), 7):
        archive.write_bytes(whole[:end])
        assert 'a.zip' in refused(archive)
    damaged = 0
    for at in range(0, len(whole), 3):
        archive.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            folder = take(archive)
        except UserError:
            damaged += 1
            assert [path.name for path in tmp_path.iterdir()] == ['a.zip']
        else:
            assert set(content(folder).values()) <= set(FILES.values())
            shutil.rmtree(folder)
    assert damaged > 50


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / 'page.zip'
    path.write_text('<html>')
    assert 'page.zip is no whole zip archive' in refused(path)
    path.unlink()
    with pytest.raises(UserError, match=r'page\.zip cannot be unpacked: .*No such file'):
        take(path)


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    message = refused(pack(tmp_path / 'a.zip', {'other/a': b'', 'third/b': b'', 'sets.txt': b''}))
    assert 'no folder set, but other, third, sets.txt' in message
    assert 'but nothing' in refused(pack(tmp_path / 'a.zip', {}))


def test_too_little_space_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files take a cluster of 4096 bytes each, an empty one none."""
    usage = type('Usage', (), {'free': 8191})
    monkeypatch.setattr(space.shutil, 'disk_usage', lambda path: usage)
    message = refused(pack(tmp_path / 'a.zip'))
    assert '8191 bytes free' in message
    assert 'needs 8192' in message


def test_what_a_killed_run_left_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / 'set.unpacking' / 'set').mkdir(parents=True)
    (tmp_path / 'set.unpacking' / 'set' / 'half.txt').write_text('ha')
    assert content(take(pack(tmp_path / 'a.zip'))) == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ['a.zip', 'set']


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    archive = pack(tmp_path / 'a.zip')
    (tmp_path / 'set').mkdir()
    (tmp_path / 'set' / 'mine.txt').write_text('mine')
    with pytest.raises(UserError, match=r'a\.zip cannot be unpacked'):
        take(archive)
    assert content(tmp_path / 'set') == {'set/mine.txt': b'mine'}
    assert sorted(path.name for path in tmp_path.iterdir()) == ['a.zip', 'set']
