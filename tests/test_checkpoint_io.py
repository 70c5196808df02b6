import argparse
import http.server
import os
import pickle
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
from safetensors.torch import save_file

from tiny import Make
from vit5_dense import ViT5
from vit5_dense.checkpoint import CheckpointError, load_pretrained, load_trained
from vit5_dense.checkpoint_io import download, last_good_checkpoint, resolve_checkpoint


def refusal(model: ViT5, checkpoint: object) -> str:
    """The message, one line without advice to switch the safety off."""
    with pytest.raises(CheckpointError) as info:
        load_pretrained(model, str(checkpoint))
    message = str(info.value)
    assert '\n' not in message
    assert 'weights_only' not in message
    return message


class Evil:
    """Unpickling it calls a function with a path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize('legacy', [False, True], ids=['zip', 'legacy'])
def test_code_in_a_file_is_refused_and_not_run(
    make_vit5: Make, tmp_path: Path, legacy: bool
) -> None:
    model, marker, file = make_vit5(), tmp_path / 'executed', tmp_path / 'evil.pth'
    content = {'model': model.state_dict(), 'extra': Evil(marker)}
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    message = refusal(model, file)
    assert str(file) in message
    assert 'mkdir' in message, 'what was refused'
    with pytest.raises(CheckpointError):
        load_trained(model, file)
    assert not marker.exists()
    torch.load(file, weights_only=False)
    assert marker.exists(), 'the file would have done harm'


def test_an_old_torch_is_named_where_it_cannot_read_an_official_file(
    make_vit5: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.serialization, 'safe_globals', raising=False)
    file = tmp_path / 'official.pth'
    torch.save({'model': make_vit5().state_dict(), 'args': argparse.Namespace(lr=1.0)}, file)
    message = refusal(make_vit5(), file)
    assert 'argparse.Namespace' in message
    assert 'torch before 2.5' in message


def write_broken(folder: Path) -> Iterator[Path]:
    """Files that a user may have instead of a checkpoint."""
    torch.save({'model': {'a': torch.ones(50)}}, folder / 'whole.pth')
    whole = (folder / 'whole.pth').read_bytes()
    torch.save({'a': torch.ones(50)}, folder / 'old.pth', _use_new_zipfile_serialization=False)
    old = (folder / 'old.pth').read_bytes()
    save_file({'a': torch.ones(50)}, folder / 'whole.safetensors')
    tensors = (folder / 'whole.safetensors').read_bytes()
    # as damaged disks and downloads leave them: a byte of the pickle is another one
    name = whole.index(b'storage')
    damaged = whole[:name] + b'\xff' + whole[name + 1 :]
    contents = {
        'empty.pth': b'',
        'page.pth': b'<!DOCTYPE html><html>404</html>',
        'pointer.pth': b'version https://git-lfs.github.com/spec/v1\n',
        'two_bytes.pth': b'PK',
        'half.pth': whole[: len(whole) // 2],
        'damaged.pth': damaged,
        'half_old.pth': old[: len(old) // 2],
        'half.safetensors': tensors[: len(tensors) // 2],
        'list.pth': None,
        'archive.pth': None,
        'pickle.pth': pickle.dumps({'a': 1}),
    }
    for name, content in contents.items():
        if content is not None:
            (folder / name).write_bytes(content)
        yield folder / name
    yield folder / 'no' / 'such.pth'
    yield folder


def test_wrong_files_are_named_in_one_line(make_vit5: Make, tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / 'list.pth')
    with zipfile.ZipFile(tmp_path / 'archive.pth', 'w') as archive:
        archive.writestr('readme.txt', 'hello')
    model, count = make_vit5(), 0
    for path in write_broken(tmp_path):
        assert str(path) in refusal(model, path)
        count += 1
    assert count == 13


def test_offline_the_message_says_where_to_put_the_file(
    make_vit5: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))

    def no_network(url: str, dst: str, *args: object, **kwargs: object) -> None:
        raise URLError('Name or service not known')

    monkeypatch.setattr(torch.hub, 'download_url_to_file', no_network)
    url = 'https://example.org/vit5.pth?download=true'
    message = refusal(make_vit5(), url)
    target = tmp_path / 'checkpoints' / 'vit5.pth'
    for part in (url, 'Name or service not known', str(target), '--no-pretrained'):
        assert part in message
    assert [path for path in tmp_path.rglob('*') if path.is_file()] == []

    torch.save({'model_ema': make_vit5().state_dict()}, target)  # as the message says
    assert 'EMA' in load_pretrained(make_vit5(), url)


def test_a_download_cut_short_leaves_no_half_file(
    make_vit5: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second attempt must not find the half of the first."""
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    monkeypatch.setenv('no_proxy', '*')

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header('Content-Length', '1000')
            self.end_headers()
            self.wfile.write(b'PK half')

        def log_message(self, *args: object) -> None:
            """Nothing on stderr."""

    with http.server.HTTPServer(('127.0.0.1', 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        message = refusal(make_vit5(), f'http://127.0.0.1:{server.server_port}/vit5.pth')
        server.shutdown()
    files = [path for path in tmp_path.rglob('*') if path.is_file()]
    assert not files or f'delete {files[0]}' in message


def save_run(path: Path, iteration: int, **more: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    meta = {'iter': iteration}
    torch.save({'meta': meta, 'message_hub': {}, 'optimizer': {}, 'state_dict': {}, **more}, path)
    return path


def test_the_last_good_checkpoint_is_found_whatever_a_kill_left(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A pointer to nothing, an empty or cut file, one that is being written, plain weights."""
    files = [save_run(tmp_path / f'iter_{number}.pth', number) for number in (9, 20, 100)]
    pointer = tmp_path / 'last_checkpoint'
    assert last_good_checkpoint(tmp_path) == files[2]
    pointer.write_text(str(files[1]))
    assert last_good_checkpoint(tmp_path) == files[1]
    pointer.write_text('')
    assert last_good_checkpoint(tmp_path) == files[2]
    (tmp_path / 'iter_200.pth.unfinished').write_bytes(b'half')
    (tmp_path / 'best_mIoU_iter_300.pth').write_bytes(files[0].read_bytes())
    files[2].write_bytes(files[2].read_bytes()[:-200])
    assert last_good_checkpoint(tmp_path) == files[1]
    assert 'iter_100.pth is broken or cut short' in capsys.readouterr().out
    torch.save({'state_dict': {}, 'meta': {}}, files[1])
    assert last_good_checkpoint(tmp_path) == files[0]
    files[0].write_bytes(b'')
    with pytest.raises(CheckpointError, match=r'nothing to go on from.*iter_20\.pth.*iter_9\.pth'):
        last_good_checkpoint(tmp_path)


def test_an_empty_work_dir_has_nothing_to_go_on_from(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match='has no checkpoints'):
        last_good_checkpoint(tmp_path)


def test_a_moved_or_copied_work_dir_goes_on_from_its_own_files(tmp_path: Path) -> None:
    """Its pointer names the place where it was."""
    first, copy = tmp_path / 'first', tmp_path / 'copy'
    for folder in (first, copy):
        for iteration in (9, 20):
            save_run(folder / f'iter_{iteration}.pth', iteration)
        (folder / 'last_checkpoint').write_text(str(first / 'iter_20.pth'))
    for _ in range(2):
        assert last_good_checkpoint(copy) == copy / 'iter_20.pth'
        assert resolve_checkpoint(str(copy / 'last_checkpoint')) == copy / 'iter_20.pth'
        (first / 'iter_20.pth').unlink(missing_ok=True)
    (first / 'last_checkpoint').write_text(str(copy / 'iter_20.pth'))
    assert last_good_checkpoint(first) == copy / 'iter_20.pth', 'of a checkpoint.out_dir'


def test_a_file_written_after_the_pointer_counts(tmp_path: Path) -> None:
    """A kill came between the two. Higher numbers of a run before are older than the pointer."""
    files = [save_run(tmp_path / f'iter_{iteration}.pth', iteration) for iteration in (9, 20, 100)]
    pointer = tmp_path / 'last_checkpoint'
    pointer.write_text(str(files[1]))
    for path, seconds in zip((*files, pointer), (300, 100, 200, 150), strict=True):
        os.utime(path, (seconds, seconds))
    assert last_good_checkpoint(tmp_path) == files[2]
    os.utime(files[2], (140, 140))
    assert last_good_checkpoint(tmp_path) == files[1]


def test_a_download_does_not_rely_on_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may not have joined yet; who comes later finds the file."""
    monkeypatch.setenv('LOCAL_RANK', '1')
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    fetched = []

    def fetch(url: str, target: str) -> None:
        fetched.append(url)
        save_run(Path(target), 1)

    monkeypatch.setattr(torch.hub, 'download_url_to_file', fetch)
    for _ in range(2):
        assert download('https://example.org/a.pth').is_file()
    assert len(fetched) == 1
    assert [path.name for path in (tmp_path / 'checkpoints').iterdir()] == ['a.pth']
