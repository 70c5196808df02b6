import functools
import threading
from collections.abc import Iterator, Mapping
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest
from mmengine.config import Config

from tiny_run import REPO, load_tool
from vit5_dense.building import check_data
from vit5_dense.datasets.prepare import locked
from vit5_dense.errors import UserError, run_tool

ADE = [
    f'ADEChallengeData2016/{kind}/{split}/ADE_{k}.{suffix}'
    for kind, suffix in (('images', 'jpg'), ('annotations', 'png'))
    for split, count in (('training', 3), ('validation', 2))
    for k in range(count)
]
COCO = {
    'annotations': [f'annotations/instances_{split}2017.json' for split in ('train', 'val')],
    'val2017': [f'val2017/{k:012d}.jpg' for k in range(2)],
    'train2017': [f'train2017/{k:012d}.jpg' for k in range(3)],
}


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """Address of a server that has the files in ``tmp_path/web``."""
    (tmp_path / 'web').mkdir()
    handler = functools.partial(Handler, directory=str(tmp_path / 'web'))
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f'http://127.0.0.1:{server.server_address[1]}'
        server.shutdown()


def small(name: str, counts: Mapping[str, int]) -> ModuleType:
    """A tool that expects small numbers of files, in the order of its patterns."""
    tool = load_tool(name)
    numbers = iter(counts.values())
    tool.PARTS = tuple(
        part._replace(counts={pattern: next(numbers) for pattern in part.counts})
        for part in tool.PARTS
    )
    assert next(numbers, None) is None
    return tool


@pytest.fixture
def ade() -> ModuleType:
    return small('prepare_ade20k', {'it': 3, 'iv': 2, 'at': 3, 'av': 2})


@pytest.fixture
def coco() -> ModuleType:
    return small('prepare_coco', {'at': 1, 'av': 1, 'val': 2, 'train': 3})


def pack(path: Path, names: list[str]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with ZipFile(path, 'w') as file:
        for name in names:
            file.writestr(name, name)
    return path


def code(tool: ModuleType, *argv: object) -> int:
    return run_tool(lambda: tool.main([str(arg) for arg in argv]))


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file())


def test_the_official_sets_are_expected() -> None:
    (ade,) = load_tool('prepare_ade20k').PARTS
    assert ade.archive() == 'ADEChallengeData2016.zip'
    assert sorted(ade.counts.values()) == [2000, 2000, 20210, 20210]
    coco = {part.archive(): part for part in load_tool('prepare_coco').PARTS}
    assert coco['train2017.zip'].counts == {'*.jpg': 118287}
    assert coco['val2017.zip'].counts == {'*.jpg': 5000}
    assert set(coco) == {'train2017.zip', 'val2017.zip', 'annotations_trainval2017.zip'}
    for part in (ade, *coco.values()):
        assert part.url.startswith(
            ('http://data.csail.mit.edu/places/ADEchallenge/', 'http://images.cocodataset.org/')
        )


@pytest.mark.parametrize('keep', [False, True])
def test_ade20k_is_fetched_unpacked_and_left_alone_the_second_time(
    ade: ModuleType, web: str, tmp_path: Path, capsys: pytest.CaptureFixture, keep: bool
) -> None:
    pack(tmp_path / 'web' / 'ADEChallengeData2016.zip', ADE)
    url, root = f'{web}/ADEChallengeData2016.zip', tmp_path / 'data' / 'ade'
    argv = ['--root', root, '--url', url, *(['--keep-zip'] if keep else [])]
    assert code(ade, *argv) == 0
    assert f'downloading {url}' in capsys.readouterr().out
    assert files(root) == sorted([*ADE, *(['ADEChallengeData2016.zip'] if keep else [])])
    (tmp_path / 'web' / 'ADEChallengeData2016.zip').unlink()
    assert code(ade, *argv) == 0
    assert 'already there and whole' in capsys.readouterr().out


def test_coco_takes_local_archives_and_fetches_the_rest(
    coco: ModuleType, web: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Local ones in any order, by what is in them; one lies in the root under its official name."""
    root = tmp_path / 'coco'
    pack(tmp_path / 'web' / 'v.zip', COCO['val2017'])
    first = pack(tmp_path / 'mine' / 'first.zip', COCO['train2017'])
    own = pack(root / 'annotations_trainval2017.zip', COCO['annotations'])
    urls = [f'{web}/no.zip', f'{web}/v.zip', f'{web}/no.zip']
    assert code(coco, '--root', root, '--zip', first, '--url', *urls) == 0
    output = capsys.readouterr().out
    assert f'downloading {web}/v.zip' in output
    assert f'taking {first}' in output
    assert files(root) == sorted([own.name, *(name for part in COCO.values() for name in part)])
    assert first.exists()


@pytest.mark.parametrize(
    ('tool', 'config', 'names', 'root'),
    [
        ('ade', 'ade20k_512', ADE, 'data/ade'),
        ('coco', 'coco_instance', [n for part in COCO.values() for n in part], 'data/coco'),
    ],
)
def test_the_configs_find_the_set(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    config: str,
    names: list[str],
    root: str,
) -> None:
    cfg = Config.fromfile(REPO / 'configs' / '_base_' / 'datasets' / f'{config}.py')
    module = request.getfixturevalue(tool)
    archive = pack(tmp_path / 'all.zip', names)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        check_data(cfg, ('train', 'val', 'test'))
    assert code(module, '--zip', archive) == 0
    check_data(cfg, ('train', 'val', 'test'))
    assert len(files(tmp_path / root)) == len(names)


def test_wrong_counts_are_told_and_nothing_is_unpacked(
    ade: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    archive = pack(tmp_path / 'a.zip', ADE[:-1])
    assert code(ade, '--root', tmp_path / 'ade', '--zip', archive) == 2
    error = capsys.readouterr().err
    assert 'a.zip has 1 files annotations/validation/*.png that are not empty, not 2' in error
    assert files(tmp_path / 'ade') == []


def test_a_set_that_is_not_whole_is_not_touched(
    coco: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """It is told before anything else is fetched."""
    folder = tmp_path / 'coco' / 'train2017'
    folder.mkdir(parents=True)
    for name, text in (('1.jpg', 'x'), ('2.jpg', 'x'), ('3.jpg', '')):
        (folder / name).write_text(text)
    assert code(coco, '--root', tmp_path / 'coco') == 2
    captured = capsys.readouterr()
    assert f'{folder} has 2 files *.jpg that are not empty, not 3: move it away' in captured.err
    assert 'downloading' not in captured.out
    assert len(files(folder)) == 3


def test_a_broken_archive_is_told_and_stays(
    ade: ModuleType, web: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    archive = pack(tmp_path / 'web' / 'a.zip', ADE)
    archive.write_bytes(archive.read_bytes()[:-500])
    assert code(ade, '--root', tmp_path / 'ade', '--url', f'{web}/a.zip') == 2
    error = capsys.readouterr().err
    assert 'ADEChallengeData2016.zip is no whole zip archive' in error
    assert 'Traceback' not in error
    assert files(tmp_path / 'ade') == ['ADEChallengeData2016.zip']


def test_a_missing_file_on_the_server_is_told(
    ade: ModuleType, web: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert code(ade, '--root', tmp_path / 'ade', '--url', f'{web}/no.zip') == 2
    assert f'{web}/no.zip cannot be downloaded: the server answers 404' in capsys.readouterr().err
    assert files(tmp_path / 'ade') == []


def test_wrong_options_are_told_before_anything_is_made(
    coco: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    train, again = (pack(tmp_path / name, COCO['train2017']) for name in ('a.zip', 'b.zip'))
    other = pack(tmp_path / 'c.zip', ['else/a.jpg'])
    cases = {
        ('--url', 'http://host/a.zip'): '--url needs 3 addresses',
        ('--url', 'http://host/a', 'http://host/b', 'file:///c'): 'file:///c is no address',
        ('--zip', train, again): 'both have train2017',
        ('--zip', other): 'c.zip has none of the folders annotations, val2017, train2017',
        ('--zip', tmp_path / 'no.zip'): 'no.zip',
    }
    for options, part in cases.items():
        assert code(coco, '--root', tmp_path / 'coco', *options) == 2
        assert part in capsys.readouterr().err
    assert not (tmp_path / 'coco').exists()


def test_two_runs_do_not_prepare_the_same_folder(
    ade: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    archive = pack(tmp_path / 'a.zip', ADE)
    root = tmp_path / 'ade'
    root.mkdir()
    with locked(root):
        assert code(ade, '--root', root, '--zip', archive) == 2
        assert 'another run prepares it' in capsys.readouterr().err
    assert code(ade, '--root', root, '--zip', archive) == 0
