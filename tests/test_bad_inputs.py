"""Every mistake in what a tool is given ends in one message and leaves nothing half-written."""

import functools
import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from bad_files import LONG, write_all
from bad_rows import Row, all_rows
from conftest import SHARED
from tiny_run import REPO, Run, exit_code, trained, write_config
from vit5_dense import health
from vit5_dense.config import load_config
from vit5_dense.versions import installed_distributions

pytest.importorskip('mmseg')

#: What is installed, read once: it takes longer than most of the tools do.
INSTALLED = functools.cache(installed_distributions)


@pytest.fixture(scope='module')
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | str]:
    """What the names in braces stand for, but for the place of results."""
    run: Run = trained(tmp_path_factory)
    folder = write_all(tmp_path_factory.mktemp('bad'), run)
    configs = tmp_path_factory.mktemp('configs')
    flat = configs / 'flat.py'  # without its bases a config is read in a fifth of the time
    flat.write_text(load_config(str(run.config)).pretty_text)
    return {
        'config': flat,
        'det': write_config(configs, run.data, name='det', detector=True),
        'checkpoint': run.checkpoint,
        'picture': sorted((run.data / 'images' / 'val').iterdir())[0],
        'bad': folder,
        'long': LONG,
        'shared': (SHARED / 'data').resolve(),
    }


def listing(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of every file below a folder."""
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob('*')
        if not path.is_dir()
    }


def require_whole(path: Path) -> None:
    """Fail unless a file is a whole one of its kind."""
    assert not re.search('part|unfinished|tmp', path.name), path
    if path.suffix == '.json':
        json.loads(path.read_text())
    elif path.suffix in ('.pth', '.safetensors'):
        torch.load(path, weights_only=True)
    elif path.suffix == '.png':
        with Image.open(path) as file:
            file.load()


@pytest.mark.parametrize('row', list(all_rows()), ids=lambda row: f'{row.tool} {row.argv}'[:90])
def test_a_mistake_ends_in_one_message(
    row: Row,
    place: dict[str, Path | str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not (REPO / 'tools' / f'{row.tool}.py').is_file():
        pytest.skip(f'no tools/{row.tool}.py')
    if '{shared}' in row.argv and not Path(place['shared']).is_dir():
        pytest.skip(f'no {place["shared"]}')
    if '{det}' in row.argv:
        pytest.importorskip('mmdet')
    monkeypatch.setattr(health, 'installed_distributions', INSTALLED)
    monkeypatch.delenv('LOCAL_RANK', raising=False)
    monkeypatch.chdir(tmp_path)
    names = {**place, 'out': tmp_path / 'out'}
    before = listing(Path(place['bad']))
    try:
        code = exit_code(row.tool, *(part.format(**names) for part in row.argv.split()))
    except SystemExit as leave:  # argparse leaves this way, the name of the program before
        code = leave.code
    output = capsys.readouterr()
    assert code == row.code, output.err[-2000:]
    assert 'Traceback' not in output.out + output.err
    assert len(re.findall(r'^(?:\S+(?: \w+)?: )?error: ', output.err, re.MULTILINE)) == row.lines
    message = output.err[re.search('error: ', output.err).start() :]
    for word in row.words:
        assert word.format(**names) in message
    assert listing(Path(place['bad'])) == before
    left = listing(tmp_path)
    for path in left:
        require_whole(path)
    keeps = row.code == 1 or row.tool in ('train', 'test', 'check_data', 'benchmark')
    assert keeps or not left
