import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from tiny_run import DEMO, REPO, Run, call, exit_code, load_tool, scenes, trained, write_config


@pytest.fixture(scope='module')
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory)


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scenes(tmp_path_factory)


@pytest.fixture
def tool() -> ModuleType:
    return load_tool('train')


@pytest.fixture
def refused(
    tool: ModuleType, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Function that runs the tool, which must refuse in one line and before it builds a model."""
    monkeypatch.setattr(tool, 'build_runner', lambda *args: pytest.fail('something was built'))

    def run_it(*argv: object) -> str:
        assert exit_code(tool, *argv) == 2
        error = capsys.readouterr().err
        assert error.startswith('error: ')
        assert error.count('\n') == 1
        return error

    return run_it


def losses(work_dir: Path) -> list[tuple[int, float]]:
    (file,) = work_dir.glob('*/vis_data/scalars.json')
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [(row['step'], row['loss']) for row in rows if 'loss' in row]


def test_a_run_leaves_checkpoints_a_log_and_a_report(run: Run) -> None:
    work_dir = run.checkpoint.parent
    assert set(run.scores) >= {'mIoU', 'mAcc', 'aAcc'}
    assert 0 <= run.scores['mIoU'] <= 100
    assert (work_dir / 'last_checkpoint').read_text().strip() == str(run.checkpoint)
    assert run.checkpoint.is_file()
    assert [step for step, _ in losses(work_dir)] == [1, 2, 3, 4]
    with Image.open(work_dir / 'report.png') as report:
        assert report.size[1] == 3 * 324  # curves, 3 truths and a prediction, 2 predictions


def test_a_missing_data_folder_is_named_with_the_remedy(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refused(DEMO)
    assert str(tmp_path / 'data' / 'shapes' / 'images' / 'train') in error
    assert 'tools/make_shapes.py --out data/shapes' in error
    error = refused(REPO / 'configs' / 'upernet_vit5_b_ade20k.py')
    assert str(tmp_path / 'data' / 'ade') in error
    assert 'ADEChallengeData2016.zip' in error


def test_an_empty_validation_folder_is_named_as_well(
    refused: Callable[..., str], tmp_path: Path, data: Path
) -> None:
    (tmp_path / 'images' / 'val').mkdir(parents=True)
    config = write_config(tmp_path, data)
    error = refused(config, '--cfg-options', f'val_dataloader.dataset.data_root={tmp_path}')
    assert f'{tmp_path}/images/val is empty' in error


@pytest.mark.parametrize(
    ('options', 'part'),
    [
        (['--resume'], 'nothing to go on from'),
        (['--resume', 'nope.pth'], 'nope.pth does not exist'),
        (['--launcher', 'pytorch'], 'dist_train.sh'),
        (['--cfg-options', 'model.decode_head.in_channels.9=3'], '--cfg-options'),
        (['--cfg-options', 'model.backbone.arch.depth.x=3'], '--cfg-options'),
    ],
)
def test_wrong_options_are_refused(
    refused: Callable[..., str],
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    part: str,
) -> None:
    monkeypatch.delenv('LOCAL_RANK', raising=False)
    config = write_config(tmp_path, data)
    assert part in refused(config, '--work-dir', tmp_path / 'work', *options)


def test_a_missing_config_is_refused(refused: Callable[..., str]) -> None:
    assert 'configs/nope.py does not exist' in refused('configs/nope.py')
    assert 'has no config' in refused('vit5_dense::nope.py')


def test_an_option_without_a_value_is_refused(tmp_path: Path, data: Path) -> None:
    config = write_config(tmp_path, data)
    try:
        code = exit_code(
            'train', config, '--work-dir', tmp_path / 'w', '--cfg-options', 'max_iters'
        )
    except SystemExit as error:  # argparse leaves this way
        code = error.code
    assert code == 2


@pytest.mark.parametrize(
    ('option', 'part'),
    [
        ('model.backbone.nope=3', 'nope'),
        ('model.backbone.arch.embed_dims=30', 'embed_dims 30'),
        ('model.backbone.patch_size=8', 'stride'),
        ('model.decode_head.num_classes=3', 'num_classes'),
        ('train_dataloader.batch_size=many', 'batch_size'),
        ('train_dataloader.dataset.type=Nope', 'Nope'),
        ('optim_wrapper.paramwise_cfg.nope=1', 'nope'),
        ('optim_wrapper.optimizer.lrr=3', 'lrr'),
        ('train_cfg.type=Nope', 'Nope'),
    ],
)
def test_settings_that_nothing_can_be_built_from_are_named(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture, option: str, part: str
) -> None:
    config = write_config(tmp_path, data)
    assert exit_code('train', config, '--work-dir', tmp_path / 'w', '--cfg-options', option) == 2
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith('error: ')]
    assert len(lines) == 1
    assert part in lines[0].replace(option, '')


def test_a_work_dir_that_cannot_be_made_is_named(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture
) -> None:
    config = write_config(tmp_path, data)
    assert exit_code('train', config, '--work-dir', config) == 2
    assert str(config) in capsys.readouterr().err


def test_a_wrong_file_to_start_from_is_named(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / 'page.pth').write_text('<html>')
    options = [f'model.backbone.init_cfg.checkpoint={tmp_path}/page.pth']
    options += ['model.backbone.init_cfg.type=Pretrained']
    config = write_config(tmp_path, data)
    argv = [config, '--work-dir', tmp_path / 'w', '--cfg-options', *options]
    assert exit_code('train', *argv) == 2
    assert 'error: ' in (error := capsys.readouterr().err)
    assert f'{tmp_path}/page.pth is neither' in error


class Harmful:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.path,)


def wrong_start(kind: str, folder: Path) -> Path:
    """A file that a run cannot or must not start from."""
    path = folder / 'wrong.pth'
    content = {'state_dict': {'a': torch.ones(1000)}, 'meta': {}, 'message_hub': {}}
    if kind == 'safetensors':
        save_file(content['state_dict'], path)
    elif kind == 'cut short':
        torch.save(content, path)
        path.write_bytes(path.read_bytes()[:-1000])
    else:
        zipped = kind != 'harmful, of old torch'
        content['meta'] = {'hook': Harmful(folder / 'harm')}
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.mark.parametrize('way', ['--resume', 'load_from', 'resume=True'])
@pytest.mark.parametrize('kind', ['harmful', 'harmful, of old torch', 'cut short', 'safetensors'])
def test_a_file_to_go_on_from_is_refused_before_it_can_do_harm(
    refused: Callable[..., str], tmp_path: Path, data: Path, kind: str, way: str
) -> None:
    """mmengine runs the code in a file that it cannot load otherwise."""
    path = wrong_start(kind, tmp_path)
    (tmp_path / 'last_checkpoint').write_text(str(path))
    options = {
        '--resume': ['--resume', path],
        'load_from': ['--cfg-options', f'load_from={path}'],
        'resume=True': ['--cfg-options', 'resume=True'],
    }[way]
    config = write_config(tmp_path, data)
    assert str(path) in refused(config, '--work-dir', tmp_path, *options)
    assert not (tmp_path / 'harm').exists()
    if kind.startswith('harmful'):
        torch.load(path, weights_only=False)
        assert (tmp_path / 'harm').is_dir(), 'the file would have done harm'


def test_a_run_does_not_go_on_from_weights_only(
    refused: Callable[..., str], tmp_path: Path, data: Path
) -> None:
    torch.save({'state_dict': {'a': torch.ones(2)}, 'meta': {}}, tmp_path / 'published.pth')
    argv = [write_config(tmp_path, data), '--work-dir', tmp_path / 'w']
    assert 'load_from' in refused(*argv, '--resume', tmp_path / 'published.pth')


def test_a_url_to_start_from_is_downloaded_and_read(
    refused: Callable[..., str], tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    (tmp_path / 'checkpoints').mkdir()
    wrong_start('harmful', tmp_path).rename(tmp_path / 'checkpoints' / 'model.pth')
    options = ['--cfg-options', 'load_from=https://example.org/model.pth']
    error = refused(write_config(tmp_path, data), '--work-dir', tmp_path / 'w', *options)
    assert f'{tmp_path}/checkpoints/model.pth holds' in error
    assert not (tmp_path / 'harm').exists()


def test_no_pretrained_leaves_the_file_out(tool: ModuleType) -> None:
    config = str(REPO / 'configs' / 'upernet_vit5_b_ade20k.py')
    with_file = tool.build_config(tool.parse_args([config]))
    without = tool.build_config(tool.parse_args([config, '--no-pretrained']))
    assert with_file.model.backbone.init_cfg.type == 'Pretrained'
    assert without.model.backbone.init_cfg is None


def test_the_arch_can_be_set_on_the_command_line_and_paths_are_the_users(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo config, mixed precision and SyncBN without a GPU, from a folder of one's own."""
    monkeypatch.chdir(tmp_path)
    sizes = {'embed_dims': 32, 'depth': 2, 'num_heads': 2}
    options = [f'{split}_dataloader.dataset.data_root={data}' for split in ('train', 'val')]
    options += [f'model.backbone.arch.{key}={value}' for key, value in sizes.items()]
    options += ['model.backbone.arch._delete_=True', 'model.backbone.out_indices=[1]']
    options += ['model.neck.in_channels=32', 'model.decode_head.in_channels=[32,32,32,32]']
    options += ['model.auxiliary_head.in_channels=32', 'train_dataloader.batch_size=2']
    options += ['model.decode_head.channels=8', 'model.auxiliary_head.channels=8']
    options += ['train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'randomness.seed=3']
    options += ['train_dataloader.num_workers=0', 'val_dataloader.num_workers=0']
    options += ['default_hooks.logger.interval=1']

    dtypes = set()

    def note(module: nn.Module, args: object, out: Any) -> None:
        if isinstance(module, nn.Linear):
            dtypes.add((module.training, out.dtype))

    handle = nn.modules.module.register_module_forward_hook(note)
    scores = call('train', DEMO, '--amp', '--no-pretrained', '--cfg-options', *options)
    handle.remove()
    assert dtypes == {(True, torch.bfloat16), (False, torch.float32)}
    assert 0 <= scores['mIoU'] <= 100
    work_dir = tmp_path / 'work_dirs' / 'upernet_vit5_ti_shapes'
    assert len(losses(work_dir)) == 2
    assert all(value == value for _, value in losses(work_dir)), 'no NaN'
    assert (work_dir / 'report.png').is_file()
    state = torch.load(work_dir / 'iter_2.pth', weights_only=True)['state_dict']
    assert {value.dtype for value in state.values() if value.is_floating_point()} == {torch.float32}


def test_the_same_seed_gives_the_same_losses(tmp_path: Path, run: Run) -> None:
    call('train', run.config, '--work-dir', tmp_path / 'same')
    assert losses(tmp_path / 'same') == losses(run.checkpoint.parent)
    options = ['randomness.seed=1', 'train_cfg.max_iters=2']
    call('train', run.config, '--work-dir', tmp_path / 'other', '--cfg-options', *options)
    assert losses(tmp_path / 'other') != losses(run.checkpoint.parent)[:2]


def test_a_run_resumes_from_the_file_named(tmp_path: Path, run: Run) -> None:
    half = run.checkpoint.with_name('iter_2.pth')
    call('train', run.config, '--work-dir', tmp_path, '--resume', half)
    assert [step for step, _ in losses(tmp_path)] == [3, 4]


def test_without_validation_there_is_still_a_report(tmp_path: Path, data: Path) -> None:
    extra = 'val_dataloader = val_cfg = val_evaluator = None\n'
    extra += "train_cfg.update(max_iters=1)\ndefault_hooks['checkpoint'].update(save_best=None)\n"
    config = write_config(tmp_path, data, extra)
    assert call('train', config, '--work-dir', tmp_path / 'work') == {}
    assert (tmp_path / 'work' / 'report.png').is_file()


def test_the_rate_scales_with_the_batch_when_asked(tool: ModuleType) -> None:
    cfg = tool.build_config(tool.parse_args([str(DEMO), '--auto-scale-lr']))
    assert cfg.auto_scale_lr == {'enable': True, 'base_batch_size': 16}


def test_help_has_two_examples(tool: ModuleType, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        tool.parse_args(['--help'])
    text = capsys.readouterr().out
    assert text.count('python tools/train.py') == 2


def rates(work_dir: Path) -> list[tuple[int, float]]:
    """Iteration and rate of each row that was logged in training."""
    (file,) = work_dir.glob('*/vis_data/scalars.json')
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [(row['step'], row['lr']) for row in rows if 'loss' in row]


def test_accumulated_steps_have_the_rates_of_whole_ones(tmp_path: Path, data: Path) -> None:
    extra = 'train_cfg.update(max_iters=2)\n'
    extra += "param_scheduler = [dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=2)]\n"
    config = write_config(tmp_path, data, extra)
    call('train', config, '--work-dir', tmp_path / 'whole')
    call('train', config, '--work-dir', tmp_path / 'parts', '--accumulate', 4)
    whole, parts = rates(tmp_path / 'whole'), rates(tmp_path / 'parts')
    assert [step for step, _ in whole] == [1, 2]
    assert [step for step, _ in parts] == [4, 8]
    assert [rate for _, rate in parts] == [rate for _, rate in whole]
    assert whole[1][1] == pytest.approx(10 * whole[0][1])
    last = torch.load(tmp_path / 'parts' / 'iter_8.pth', weights_only=True)
    assert {int(state['step']) for state in last['optimizer']['state'].values()} == {2}


def test_accumulation_counts_for_the_scaled_rate(tool: ModuleType) -> None:
    argv = [str(DEMO), '--auto-scale-lr', '--accumulate', '4']
    cfg = tool.build_config(tool.parse_args(argv))
    assert cfg.auto_scale_lr == {'enable': True, 'base_batch_size': 4}  # 16 / 4 in an iteration


def test_a_senseless_accumulation_is_refused(
    refused: Callable[..., str], tmp_path: Path, data: Path
) -> None:
    config = write_config(tmp_path, data)
    assert '--accumulate 0 must be' in refused(config, '--accumulate', 0)


def test_the_users_config_is_never_written(tmp_path: Path, data: Path) -> None:
    """Also where it lies in the work dir, under the name of the copy that a run leaves."""
    config = write_config(tmp_path, data, 'train_cfg.update(max_iters=1)\n')
    before = config.read_text()
    call('train', config, '--work-dir', tmp_path)
    assert config.read_text() == before
    call('test', config, tmp_path / 'last_checkpoint')
    assert config.read_text() == before


def test_a_test_leaves_the_config_that_a_run_recorded(tmp_path: Path, run: Run) -> None:
    recorded = run.checkpoint.with_name(run.config.name)
    before = recorded.read_text()
    call('test', run.config, run.checkpoint, '--cfg-options', 'log_level=WARNING')
    assert recorded.read_text() == before


def test_intervals_between_two_steps_are_refused(
    refused: Callable[..., str], tmp_path: Path, data: Path
) -> None:
    config = write_config(tmp_path, data)
    error = refused(config, '--cfg-options', 'optim_wrapper.accumulative_counts=3')
    assert 'use --accumulate 3' in error
