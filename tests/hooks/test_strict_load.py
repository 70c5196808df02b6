from pathlib import Path

import pytest
import torch

from tiny_run import Run, call, exit_code, trained, write_config

ONE = 'train_cfg.update(max_iters=1, val_interval=1)\n'


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory)


def test_a_run_starts_from_a_whole_model(run: Run, tmp_path: Path) -> None:
    config = write_config(tmp_path, run.data, ONE)
    call('train', config, '--work-dir', tmp_path, '--cfg-options', f'load_from={run.checkpoint}')
    before = torch.load(run.checkpoint, weights_only=True)['state_dict']
    after = torch.load(tmp_path / 'iter_1.pth', weights_only=True)['state_dict']
    name = 'backbone.blocks.1.mlp.fc2.weight'
    torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-3)  # one small step


def test_what_is_new_in_fine_tuning_is_listed(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    state = torch.load(run.checkpoint, weights_only=True)['state_dict']
    name = 'decode_head.conv_seg.weight'
    state[name] = torch.zeros(3, *state[name].shape[1:])
    state['decode_head.gone'] = torch.zeros(2)
    torch.save({'state_dict': state}, tmp_path / 'other.pth')
    config = write_config(tmp_path, run.data, ONE)
    options = ['--cfg-options', f'load_from={tmp_path}/other.pth']
    call('train', config, '--work-dir', tmp_path, *options)
    text = capsys.readouterr().out
    (log,) = tmp_path.glob('*/*.log')
    line = next(line for line in (text + log.read_text()).splitlines() if 'Fine-tuning' in line)
    assert f'{len(state) - 2} of {len(state) - 1} tensors' in line
    assert name in line.split('Not used')[0]
    assert 'decode_head.gone' in line.split('Not used')[1]


@pytest.mark.parametrize('fault', ['missing', 'misshapen'])
def test_a_backbone_that_does_not_fit_whole_is_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture, fault: str
) -> None:
    state = torch.load(run.checkpoint, weights_only=True)['state_dict']
    name = 'backbone.blocks.1.mlp.fc2.weight'
    if fault == 'missing':
        del state[name]
    else:
        state[name] = torch.zeros(7, 128)
    torch.save({'state_dict': state}, tmp_path / 'other.pth')
    config = write_config(tmp_path, run.data, ONE)
    options = ['--cfg-options', f'load_from={tmp_path}/other.pth']
    assert exit_code('train', config, '--work-dir', tmp_path, *options) == 2
    assert name in capsys.readouterr().err


def test_a_bare_vit5_is_sent_to_where_it_belongs(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    state = torch.load(run.checkpoint, weights_only=True)['state_dict']
    bare = {k.removeprefix('backbone.'): v for k, v in state.items() if k.startswith('backbone.')}
    torch.save({'model': bare}, tmp_path / 'vit5.pth')
    config = write_config(tmp_path, run.data, ONE)
    options = ['--cfg-options', f'load_from={tmp_path}/vit5.pth']
    assert exit_code('train', config, '--work-dir', tmp_path, *options) == 2
    assert 'init_cfg' in capsys.readouterr().err


def test_a_run_resumes_only_from_its_own_model(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    content = torch.load(run.checkpoint, weights_only=True)
    del content['state_dict']['auxiliary_head.conv_seg.bias']
    torch.save(content, tmp_path / 'other.pth')
    argv = [run.config, '--work-dir', tmp_path, '--resume', tmp_path / 'other.pth']
    assert exit_code('train', *argv) == 2
    assert 'missing: auxiliary_head.conv_seg.bias' in capsys.readouterr().err
