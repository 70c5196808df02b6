import errno
import os
from pathlib import Path

import pytest
from mmengine.fileio import get_file_backend

from vit5_dense.atomic import write_atomically
from vit5_dense.errors import UserError


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    backend = get_file_backend(backend_args={'backend': 'vit5_atomic'})
    path = tmp_path / 'folder' / 'a.pth'
    for content in (b'first', b'second, longer'):
        backend.put(content, path)
        assert path.read_bytes() == content
    backend.put_text('words', path)
    assert path.read_text() == 'words'
    assert [file.name for file in path.parent.iterdir()] == ['a.pth']


@pytest.mark.parametrize('call', ['fsync', 'replace'])
def test_a_full_disk_leaves_the_old_file_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / 'a.pth'
    path.write_bytes(b'old')

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(*((os, 'fsync') if call == 'fsync' else (Path, 'replace')), full)
    with pytest.raises(UserError, match=r'No space left on device.*--resume'):
        write_atomically(path, b'new')
    assert path.read_bytes() == b'old'
    assert list(tmp_path.iterdir()) == [path]


def test_the_disk_has_the_content_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, 'fsync', lambda file: steps.append('sync') or fsync(file))
    monkeypatch.setattr(Path, 'replace', lambda *args: steps.append('rename') or replace(*args))
    write_atomically(tmp_path / 'a', b'content')
    assert steps == ['sync', 'rename', 'sync']
