import json
import multiprocessing
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.progress import Progress

from vit5_dense.datasets import download as module
from vit5_dense.datasets import http_range
from vit5_dense.datasets.download import download
from vit5_dense.errors import UserError

CONTENT = random.Random(0).randbytes(1_000_000)
NEWER = random.Random(1).randbytes(1_000_000)


class Server(ThreadingHTTPServer):
    """A server of one file, with faults that a test chooses.

    Attributes:
        content: The file.
        tag: Its ETag; None for a server that sends none.
        ranges: Whether it knows Range.
        minds_if_range: Whether it knows If-Range.
        cuts: After how many bytes it ends each of its first answers; None is never.
        length: Content-Length where it is wrong.
        status: Answers with this status, when it is no 200.
        type: Content-Type.
        pause: s between blocks.
        redirect: Where it sends all requests to.
        asked: Range of each request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), Handler)
        self.content, self.tag, self.type = CONTENT, '"one"', 'application/zip'
        self.ranges = self.minds_if_range = True
        self.cuts: list[int | None] = []
        self.length: int | None = None
        self.status, self.pause, self.redirect = 200, 0.0, ''
        self.asked: list[str | None] = []

    def handle_error(self, *_: object) -> None:
        """A client that has left is no news."""

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self.server_address[1]}/set.zip'


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get('Range')
        server.asked.append(wanted)
        if server.redirect:
            self.send_response(302)
            self.send_header('Location', server.redirect)
            self.end_headers()
            return
        if server.status != 200:
            self.send_error(server.status)
            return
        condition = self.headers.get('If-Range')
        if server.minds_if_range and condition and condition != server.tag:
            wanted = None
        start = int(wanted.removeprefix('bytes=').rstrip('-')) if wanted and server.ranges else 0
        size = len(server.content)
        if start >= size:
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header('Content-Range', f'bytes {start}-{size - 1}/{size}')
        if server.tag:
            self.send_header('ETag', server.tag)
        self.send_header('Content-Type', server.type)
        self.send_header('Content-Length', str(server.length or len(body)))
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else None
        for at in range(0, len(body[:cut]), 1 << 16):
            self.wfile.write(body[:cut][at : at + (1 << 16)])
            time.sleep(server.pause)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, 'PAUSES', (0.01, 0.01))
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def fetch(server: Server, folder: Path) -> bytes:
    """The file as downloaded; nothing else may be left."""
    with Progress(disable=True) as progress:
        download(server.url, folder / 'set.zip', progress)
    assert [path.name for path in folder.iterdir()] == ['set.zip']
    return (folder / 'set.zip').read_bytes()


def refused(server: Server, folder: Path) -> str:
    """The message; the file must not be there."""
    with pytest.raises(UserError) as caught:
        fetch(server, folder)
    assert not (folder / 'set.zip').exists()
    return str(caught.value)


def leave_part(server: Server, folder: Path, size: int) -> None:
    """As after a failure: the first bytes of the file, and what is known of it."""
    (folder / 'set.zip.part').write_bytes(server.content[:size])
    note = {'url': server.url, 'validator': server.tag, 'size': len(server.content)}
    (folder / 'set.zip.part.json').write_text(json.dumps(note))


def test_a_file_comes_whole(server: Server, tmp_path: Path) -> None:
    assert fetch(server, tmp_path) == CONTENT
    assert server.asked == [None]


def test_the_progress_counts_bytes(server: Server, tmp_path: Path) -> None:
    leave_part(server, tmp_path, 300_000)
    with Progress(disable=True) as progress:
        download(server.url, tmp_path / 'set.zip', progress)
    (task,) = progress.tasks
    assert (task.completed, task.total) == (1_000_000, 1_000_000)


@pytest.mark.parametrize('tag', ['"one"', None])
def test_a_dropped_connection_goes_on_where_it_ended(
    server: Server, tmp_path: Path, tag: str | None
) -> None:
    """Without an ETag the size tells that the file is the same. Six drops are more than the tries
    that a standstill is given."""
    server.tag, server.cuts = tag, [100_000] * 6
    assert fetch(server, tmp_path) == CONTENT
    assert server.asked == [None, *(f'bytes={k}00000-' for k in range(1, 7))]


def test_without_range_it_starts_again(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    server.ranges, server.cuts = False, [100_000]
    assert fetch(server, tmp_path) == CONTENT
    assert server.asked == [None, 'bytes=100000-']
    assert 'cannot go on' in capsys.readouterr().out


def test_a_server_that_always_drops_is_given_up(server: Server, tmp_path: Path) -> None:
    """Which is also what a wrong Content-Length looks like."""
    server.ranges, server.cuts = False, [100_000] * 99
    message = refused(server, tmp_path)
    assert '100000 of 1000000 bytes came' in message
    assert 'set.zip.part is kept' in message
    assert len(server.asked) == 3
    server.cuts, server.ranges = [], True
    assert fetch(server, tmp_path) == CONTENT
    assert server.asked[-1] == 'bytes=100000-'


def test_a_wrong_size_is_noticed(server: Server, tmp_path: Path) -> None:
    server.length, server.ranges = 1_000_007, False
    assert '1000000 of 1000007 bytes came' in refused(server, tmp_path)


@pytest.mark.parametrize('minds', [True, False])
def test_a_file_that_changed_starts_again(server: Server, tmp_path: Path, minds: bool) -> None:
    """Whether the server compares for us or leaves it to us."""
    leave_part(server, tmp_path, 300_000)
    server.content, server.tag, server.minds_if_range = NEWER, '"two"', minds
    assert fetch(server, tmp_path) == NEWER
    assert server.asked == ['bytes=300000-'] + [None] * (not minds)


@pytest.mark.parametrize('size', [200_000, 999_999])
def test_a_file_of_another_size_starts_again(server: Server, tmp_path: Path, size: int) -> None:
    """Also one that ends before the part does; the server has no tag to compare."""
    server.tag = None
    leave_part(server, tmp_path, 300_000)
    server.content = NEWER[:size]
    assert fetch(server, tmp_path) == NEWER[:size]
    assert server.asked == ['bytes=300000-', None]


def test_a_part_that_is_longer_than_the_file_starts_again(server: Server, tmp_path: Path) -> None:
    leave_part(server, tmp_path, 1_000_000)
    with (tmp_path / 'set.zip.part').open('ab') as file:
        file.write(b'too much')
    assert fetch(server, tmp_path) == CONTENT


def test_a_whole_part_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    leave_part(server, tmp_path, 1_000_000)
    assert fetch(server, tmp_path) == CONTENT
    assert server.asked == []


ELSEWHERE = '{"url": "http://else/set.zip", "validator": null, "size": 1000000}'


@pytest.mark.parametrize('note', [None, '', '[]', '{"url": 1}', ELSEWHERE])
def test_a_part_of_unknown_origin_starts_again(
    server: Server, tmp_path: Path, note: str | None
) -> None:
    leave_part(server, tmp_path, 300_000)
    path = tmp_path / 'set.zip.part.json'
    if note is None:
        path.unlink()
    else:
        path.write_text(note)
    assert fetch(server, tmp_path) == CONTENT
    assert server.asked == [None]


@pytest.mark.parametrize('status', [404, 403])
def test_a_refusal_is_told_at_once(server: Server, tmp_path: Path, status: int) -> None:
    server.status = status
    message = refused(server, tmp_path)
    assert server.url in message
    assert str(status) in message
    assert len(server.asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.status = 503
    assert '503' in refused(server, tmp_path)
    assert len(server.asked) == 3


def test_a_web_page_in_its_place_does_not_harm_the_part(server: Server, tmp_path: Path) -> None:
    leave_part(server, tmp_path, 300_000)
    server.type, server.ranges, server.content = 'text/html; charset=utf-8', False, b'<html>log in'
    assert 'web page' in refused(server, tmp_path)
    assert (tmp_path / 'set.zip.part').read_bytes() == CONTENT[:300_000]


def test_a_server_that_hangs_is_left(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_range, 'TIMEOUT', 0.1)
    server.pause = 0.5
    assert 'timed out' in refused(server, tmp_path)


def test_no_server_is_one_message(tmp_path: Path, server: Server) -> None:
    server.shutdown()
    server.server_close()
    assert 'refused' in refused(server, tmp_path)


def test_too_little_space_is_told_before_anything_is_written(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type('Usage', (), {'free': 700_001})
    monkeypatch.setattr(module.shutil, 'disk_usage', lambda path: usage)
    message = refused(server, tmp_path)
    assert '700001 bytes free' in message
    assert 'needs 1000000' in message
    assert list(tmp_path.iterdir()) == []
    leave_part(server, tmp_path, 300_000)
    assert fetch(server, tmp_path) == CONTENT


@pytest.mark.parametrize(
    'url', ['file:///etc/hostname', 'ftp://host/a', 'a.zip', 'http:///a', 'http://host:x/a']
)
def test_other_addresses_are_refused(tmp_path: Path, url: str) -> None:
    with Progress(disable=True) as progress, pytest.raises(UserError, match='no address'):
        download(url, tmp_path / 'a', progress)


@pytest.mark.parametrize('target', ['file:///etc/hostname', 'ftp://127.0.0.1/a'])
def test_redirects_lead_to_the_web_only(server: Server, tmp_path: Path, target: str) -> None:
    server.redirect = target
    assert server.url in refused(server, tmp_path)
    assert len(server.asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_one_message(server: Server, tmp_path: Path) -> None:
    message = refused(server, tmp_path / 'no')
    assert str(tmp_path / 'no') in message


def test_a_killed_run_leaves_a_part_from_which_the_next_goes_on(
    server: Server, tmp_path: Path
) -> None:
    server.pause = 0.1
    process = multiprocessing.get_context('fork').Process(target=fetch, args=(server, tmp_path))
    process.start()
    part, deadline = tmp_path / 'set.zip.part', time.monotonic() + 60
    while not part.exists() or part.stat().st_size < 200_000:
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join()
    assert sorted(p.name for p in tmp_path.iterdir()) == ['set.zip.part', 'set.zip.part.json']
    had = part.stat().st_size
    assert CONTENT.startswith(part.read_bytes())
    server.pause = 0.0
    assert fetch(server, tmp_path) == CONTENT
    assert server.asked[-1] == f'bytes={had}-'
