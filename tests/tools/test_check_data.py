import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tiny_run import VAL_SCENES, call, exit_code, load_tool, scenes, start, write_config
from vit5_dense.config import is_first_process
from vit5_dense.datasets.shapes import CLASSES


@pytest.fixture
def data(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    """Scenes of the test's own, which it may spoil."""
    return Path(shutil.copytree(scenes(tmp_path_factory), tmp_path / 'data'))


def spoil(data: Path, value: int = 99) -> Path:
    """Give the first training scene a label that no class has."""
    path = data / 'annotations' / 'train' / '000001.png'
    labels = np.array(Image.open(path))
    labels[0, 0] = value
    Image.fromarray(labels).save(path)
    return path


def test_good_data_is_reported_with_pictures_and_code_0(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config, out = write_config(tmp_path, data), tmp_path / 'out'
    assert call('check_data', config, '--out', out) == 0
    content = json.loads((out / 'data.json').read_text())
    assert content['errors'] == 0
    assert list(content['splits']) == ['train', 'val']
    labels = [np.array(Image.open(p)) for p in (data / 'annotations' / 'val').iterdir()]
    assert len(labels) == content['splits']['val']['pictures'] == VAL_SCENES
    counts = content['splits']['val']['classes']
    assert counts == {
        name: sum(int((one == i).sum()) for one in labels) for i, name in enumerate(CLASSES, 1)
    }
    for name in ('classes.png', 'samples.png'):
        assert Image.open(out / name).size[0] > 300
    output = capsys.readouterr().out
    assert 'balloon' in output
    assert str(out / 'data.json') in output


def test_errors_are_listed_with_file_and_value_and_code_2(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = spoil(data)
    config = write_config(tmp_path, data)
    assert exit_code('check_data', config, '--out', tmp_path / 'out', '--split', 'train') == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith('error: ')]
    assert str(path) in line
    assert '99 is class 98 after reduce_zero_label (1 pixels)' in line
    content = json.loads((tmp_path / 'out' / 'data.json').read_text())
    assert [fault['file'] for fault in content['faults'] if fault['level'] == 'error'] == [
        str(path)
    ]
    assert list(content['splits']) == ['train']
    assert exit_code('check_data', config, '--out', tmp_path / 'out', '--split', 'val') == 0


def test_a_quick_check_writes_no_pictures_and_changes_nothing_else(
    data: Path, tmp_path: Path
) -> None:
    spoil(data)
    config, out = write_config(tmp_path, data), tmp_path / 'out'
    assert exit_code('check_data', config, '--out', out, '--quick') == 2
    assert [path.name for path in out.iterdir()] == ['data.json']
    assert json.loads((out / 'data.json').read_text())['quick']


def test_the_default_folder_is_named_after_the_config(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, data, name='mine')
    splits = ('--split', 'val', '--split', 'train')
    assert call('check_data', config, '--quick', *splits) == 0
    file = tmp_path / 'work_dirs' / 'data_check' / 'mine' / 'data.json'
    assert list(json.loads(file.read_text())['splits']) == ['train', 'val']


def test_bad_commands_have_code_2_and_one_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config = write_config(tmp_path, data, 'val_dataloader = test_dataloader = None\n')
    assert exit_code('check_data', config, '--split', 'val', '--out', tmp_path / 'out') == 2
    assert capsys.readouterr().err.endswith('has no val_dataloader\n')
    assert exit_code('check_data', tmp_path / 'no.py') == 2
    assert 'no.py does not exist' in capsys.readouterr().err
    with pytest.raises(SystemExit) as info:
        call('check_data', config, '--split', 'tests')
    assert info.value.code == 2
    shutil.rmtree(data / 'images')
    assert exit_code('check_data', config, '--out', tmp_path / 'out') == 2
    assert f'{data}/images/train does not exist' in capsys.readouterr().err


def test_a_detector_s_data_is_checked_with_its_objects(data: Path, tmp_path: Path) -> None:
    pytest.importorskip('mmcv._ext')
    config, out = write_config(tmp_path, data, detector=True), tmp_path / 'out'
    assert call('check_data', config, '--out', out) == 0
    content = json.loads((out / 'data.json').read_text())
    objects = json.loads((data / 'instances_val.json').read_text())['annotations']
    assert sum(content['splits']['val']['classes'].values()) == len(objects)
    assert Image.open(out / 'samples.png').size[0] > 300
    path = data / 'instances_train.json'
    path.write_text(path.read_text().replace('"cone"', '"cones"'))
    assert exit_code('check_data', config, '--out', out) == 2


def test_training_stops_at_errors_and_no_check_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    path, config = spoil(data), write_config(tmp_path, data)
    train = load_tool('train')
    built = []
    monkeypatch.setattr(train, 'train', lambda cfg: built.append(cfg) or {})
    argv = (train, config, '--work-dir', tmp_path / 'work')
    assert exit_code(*argv) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: train: label out of range (1): ')
    assert error.count('\n') == 1
    for part in (str(path), 'is class 98', f'tools/check_data.py {config}', '--no-check'):
        assert part in error
    assert not built
    assert not (tmp_path / 'work').exists()
    assert exit_code(*argv, '--no-check') == 0
    assert len(built) == 1


def test_training_prints_warnings_and_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    shutil.copy(data / 'images' / 'train' / '000001.png', data / 'images' / 'train' / 'b.jpeg')
    train = load_tool('train')
    monkeypatch.setattr(train, 'train', lambda cfg: {})
    config = write_config(tmp_path, data)
    assert exit_code(train, config, '--work-dir', tmp_path / 'work') == 0
    assert 'warning: train: picture of another suffix (1): ' in capsys.readouterr().out


@pytest.mark.parametrize(('launcher', 'name'), [('pytorch', 'RANK'), ('slurm', 'SLURM_PROCID')])
def test_the_first_process_is_known_before_the_processes_join(
    monkeypatch: pytest.MonkeyPatch, launcher: str, name: str
) -> None:
    """It alone looks at the data and holds the work dir."""
    found = []
    for rank in ('0', '1', '7'):
        monkeypatch.setenv(name, rank)
        found.append(is_first_process(launcher))
    assert found == [True, False, False]
    assert is_first_process('none')


def test_the_program_ends_with_the_code(data: Path, tmp_path: Path) -> None:
    spoil(data)
    config = write_config(tmp_path, data)
    process = start('check_data', config, '--quick', '--out', tmp_path / 'out')
    output = process.communicate()[0]
    assert process.returncode == 2
    assert 'Traceback' not in output
