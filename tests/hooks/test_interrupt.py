import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.registry import HOOKS

from tiny_run import call, exit_code, follow, scenes, start, write_config

ITERATIONS = 6
LONG = 400  # more than a test waits for


@HOOKS.register_module(force=True)
class SignalAt(Hook):
    """Sends signals to this process at one moment of a run."""

    def __init__(self, moment: str, iteration: int, signals: tuple[int, ...]) -> None:
        self.moment, self.iteration, self.signals = moment, iteration, signals

    def _send(self, moment: str, iteration: int) -> None:
        if (moment, iteration) == (self.moment, self.iteration):
            for number in self.signals:
                os.kill(os.getpid(), number)

    def before_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self._send('train', runner.iter)

    def before_val_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self._send('val', runner.iter)


@HOOKS.register_module(force=True)
class FailAt(SignalAt):
    """Fails at that moment, as a loader does whose workers got the signal as well."""

    def _send(self, moment: str, iteration: int) -> None:
        super()._send(moment, iteration)
        if (moment, iteration) == (self.moment, self.iteration):
            raise ConnectionResetError(104, 'Connection reset by peer')

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self._send('stepped', runner.iter)


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scenes(tmp_path_factory)


def config(folder: Path, data: Path, hook: str = '', iterations: int = ITERATIONS) -> Path:
    """A config without regular checkpoints, so that only the hook's are found."""
    extra = f'train_cfg.update(max_iters={iterations}, val_interval=4)\n'
    extra += "default_hooks['checkpoint'].update(interval=1000, save_best=None)\n"
    if hook:
        hooks = "dict(type='ViT5InterruptHook'), dict(type='ViT5PlainCheckpointHook')"
        extra += f'custom_hooks = [dict(type={hook}), {hooks}]\n'
    return write_config(folder, data, extra)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]


def saved(work_dir: Path) -> tuple[list[str], dict[str, Any]]:
    """Names of all checkpoints, and the content of the one to go on from."""
    last = Path((work_dir / 'last_checkpoint').read_text().strip())
    content = torch.load(last, weights_only=True)  # with no allow-list
    assert last.name == f'iter_{content["meta"]["iter"]}.pth'
    return sorted(path.name for path in work_dir.glob('*.pth')), content


@pytest.mark.parametrize(
    ('hook', 'done'),
    [
        (f"'SignalAt', moment='train', iteration=2, signals=({int(signal.SIGINT)},)", 3),
        (f"'SignalAt', moment='train', iteration=0, signals=({int(signal.SIGTERM)},)", 1),
        (f"'SignalAt', moment='val', iteration=4, signals=({int(signal.SIGINT)},)", 4),
    ],
    ids=['ctrl-c', 'term', 'validation'],
)
def test_the_iteration_is_finished_and_saved(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture, hook: str, done: int
) -> None:
    before, work_dir = handlers(), tmp_path / 'work'
    assert exit_code('train', config(tmp_path, data, hook), '--work-dir', work_dir) == 130
    captured = capsys.readouterr()
    assert '--resume' in captured.out
    assert 'Traceback' not in captured.err
    names, content = saved(work_dir)
    assert names == [f'iter_{done}.pth']
    assert {int(s['step']) for s in content['optimizer']['state'].values()} == {done}
    assert handlers() == before


def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path: Path, data: Path) -> None:
    hook = f"'SignalAt', moment='train', iteration=2, signals=({int(signal.SIGINT)},)"
    work_dir = tmp_path / 'work'
    assert exit_code('train', config(tmp_path, data, hook), '--work-dir', work_dir) == 130
    first = saved(work_dir)[1]['state_dict']
    call('train', config(tmp_path, data), '--work-dir', work_dir, '--resume')
    hub = MessageHub.get_current_instance()
    assert hub.get_info('iter') == ITERATIONS - 1  # counted from 0
    losses, _ = hub.get_scalar('train/loss').data
    assert len(losses) == ITERATIONS, 'with those from before the interruption'
    names, content = saved(work_dir)
    assert f'iter_{ITERATIONS}.pth' in names
    assert {int(s['step']) for s in content['optimizer']['state'].values()} == {ITERATIONS}
    assert not torch.equal(content['state_dict']['backbone.cls_token'], first['backbone.cls_token'])
    assert (work_dir / 'report.png').is_file()


def test_a_second_signal_later_on_stops_at_once(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vit5_dense.hooks import interrupt

    seconds = iter([0.0, 2.0])
    monkeypatch.setattr(interrupt.time, 'monotonic', lambda: next(seconds))
    twice = (int(signal.SIGINT), int(signal.SIGINT))
    hook = f"'SignalAt', moment='train', iteration=2, signals={twice}"
    work_dir = tmp_path / 'work'
    argv = (config(tmp_path, data, hook), '--work-dir', work_dir, '--no-check')  # reads the clock
    assert exit_code('train', *argv) == 130
    assert list(work_dir.glob('*.pth')) == []


def test_the_same_signal_twice_at_once_counts_once(tmp_path: Path, data: Path) -> None:
    """A terminal and torchrun both send it."""
    twice = (int(signal.SIGINT), int(signal.SIGINT))
    hook = f"'SignalAt', moment='train', iteration=2, signals={twice}"
    work_dir = tmp_path / 'work'
    assert exit_code('train', config(tmp_path, data, hook), '--work-dir', work_dir) == 130
    assert saved(work_dir)[0] == ['iter_3.pth']


@pytest.mark.parametrize(('moment', 'iteration', 'done'), [('train', 2, 2), ('val', 4, 4)])
def test_a_loader_that_fails_by_the_signal_loses_nothing(
    tmp_path: Path, data: Path, moment: str, iteration: int, done: int
) -> None:
    """The error of its workers comes in the type of whatever they were doing."""
    signals = (int(signal.SIGTERM),)
    hook = f"'FailAt', moment='{moment}', iteration={iteration}, signals={signals}"
    work_dir = tmp_path / 'work'
    assert exit_code('train', config(tmp_path, data, hook), '--work-dir', work_dir) == 130
    assert saved(work_dir)[0] == [f'iter_{done}.pth']


@pytest.mark.parametrize(
    ('moment', 'signals'),
    [('stepped', (int(signal.SIGTERM),)), ('train', ())],
    ids=['within an iteration', 'without a signal'],
)
def test_an_error_of_its_own_is_no_interruption(
    tmp_path: Path, data: Path, moment: str, signals: tuple[int, ...]
) -> None:
    hook = f"'FailAt', moment='{moment}', iteration=2, signals={signals}"
    work_dir = tmp_path / 'work'
    with pytest.raises((ConnectionResetError, KeyboardInterrupt)) as error:
        call('train', config(tmp_path, data, hook), '--work-dir', work_dir)
    assert error.type is ConnectionResetError
    assert list(work_dir.glob('*.pth')) == []


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM], ids=['terminal', 'scheduler'])
def test_a_real_run_is_interrupted_and_goes_on(tmp_path: Path, data: Path, number: int) -> None:
    """As it comes: to the program and to the processes that load data for it."""
    options = [config(tmp_path, data, iterations=LONG), '--work-dir', tmp_path / 'work']
    process = start(
        'train',
        *options,
        '--cfg-options',
        'train_dataloader.num_workers=2',
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        follow(process, rf'Iter\(train\) \[ *2/{LONG}\]')
        os.killpg(process.pid, number)
        output = process.communicate(timeout=60)[0]
    finally:
        process.kill()
    assert process.returncode == 130, output[:3000] + ' ... ' + output[-3000:]
    assert 'Traceback' not in output
    assert 'go on with the same command and --resume' in output
    done = saved(tmp_path / 'work')[1]['meta']['iter']
    assert 2 <= done < LONG

    more = ['--cfg-options', f'train_cfg.max_iters={done + 1}', 'train_cfg.val_interval=1']
    assert 'mIoU' in call('train', *options, '--resume', *more)
    assert saved(tmp_path / 'work')[1]['meta']['iter'] == done + 1
