import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.fileio import LocalBackend
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.registry import HOOKS

from tiny_run import call, exit_code, follow, load_tool, scenes, start, write_config
from vit5_dense.checkpoint_io import read_file
from vit5_dense.hooks import ViT5InterruptHook

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
    assert f'saved as {work_dir}/iter_{done}.pth; go on with the same' in captured.out
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


EMA = """
randomness = dict(seed=3)
custom_hooks = [*custom_hooks, dict(type='EMAHook', momentum=0.3)]
"""


def test_weights_and_their_average_are_not_exchanged_by_an_interrupted_validation(
    tmp_path: Path, data: Path
) -> None:
    """The model has the average while it is validated; the loader may fail as well."""

    def run(name: str, hook: str, *argv: str) -> int:
        path = config(tmp_path, data, hook)
        path.write_text(path.read_text() + EMA)
        return exit_code('train', path, '--work-dir', tmp_path / name, *argv)

    never = "'SignalAt', moment='never', iteration=0, signals=()"
    assert run('whole', never) == 0
    whole = saved(tmp_path / 'whole')[1]
    for kind in ('SignalAt', 'FailAt'):
        hook = f"'{kind}', moment='val', iteration=4, signals=({int(signal.SIGTERM)},)"
        assert run(kind, hook) == 130
        assert saved(tmp_path / kind)[0] == ['iter_4.pth']
        assert run(kind, never, '--resume') == 0
        found = saved(tmp_path / kind)[1]
        for key in ('state_dict', 'ema_state_dict'):
            for name, value in whole[key].items():
                assert torch.equal(found[key][name], value), f'{kind}: {name}'


@pytest.mark.parametrize(('moment', 'iteration'), [('train', ITERATIONS - 1), ('val', ITERATIONS)])
def test_a_validation_that_was_cut_off_is_done_first(
    tmp_path: Path, data: Path, moment: str, iteration: int
) -> None:
    hook = f"'SignalAt', moment='{moment}', iteration={iteration}, signals=({int(signal.SIGINT)},)"
    argv = ['--work-dir', tmp_path / 'work', '--cfg-options', 'train_cfg._delete_=True']
    argv += ['train_cfg.by_epoch=False', 'train_cfg.val_interval=4']  # the loop's other name
    argv += [f'train_cfg.max_iters={ITERATIONS}']
    assert exit_code('train', config(tmp_path, data, hook), *argv) == 130
    scores = call('train', config(tmp_path, data), *argv, '--resume')
    validated, _ = MessageHub.get_current_instance().get_scalar('val/mIoU').data
    assert len(validated) == 2  # after iterations 4 and 6
    assert scores['mIoU'] == validated[-1]


@pytest.mark.parametrize(
    ('kind', 'done'), [('SignalAt', 4), ('FailAt', 3)], ids=['signal', 'failing loader']
)
def test_the_step_of_several_iterations_is_finished(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture, kind: str, done: int
) -> None:
    """Its gradients are not in a checkpoint; if there is no way on, the log says so."""
    iteration = {'SignalAt': 2, 'FailAt': 3}[kind]  # 2 is the third, with which a step begins
    hook = f"'{kind}', moment='train', iteration={iteration}, signals=({int(signal.SIGINT)},)"
    argv = ('--work-dir', tmp_path / 'work', '--accumulate', 2)
    assert exit_code('train', config(tmp_path, data, hook), *argv) == 130
    names, content = saved(tmp_path / 'work')
    assert names == [f'iter_{done}.pth']
    assert {int(s['step']) for s in content['optimizer']['state'].values()} == {done // 2}
    assert ('the gradients added up' in capsys.readouterr().out) == (kind == 'FailAt')


def test_an_interruption_while_it_saves_leaves_the_regular_checkpoint(
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """The regular one is of the same iteration, under the same name."""
    writes = []

    def interrupt(content: bytes, path: Path) -> None:
        writes.append(path)
        if len(writes) > 1:
            Path(path).write_bytes(content[:1000])
            raise KeyboardInterrupt

    def fsync(file: int) -> None:
        target = Path(os.readlink(f'/proc/self/fd/{file}'))
        if target.is_file():
            interrupt(target.read_bytes(), target)

    def put(self: LocalBackend, obj: bytes, filepath: Path) -> None:
        interrupt(bytes(obj), filepath)

    monkeypatch.setattr(os, 'fsync', fsync)
    monkeypatch.setattr(LocalBackend, 'put', put)
    hook = f"'SignalAt', moment='train', iteration=2, signals=({int(signal.SIGINT)},)"
    path, work_dir = config(tmp_path, data, hook), tmp_path / 'work'
    path.write_text(path.read_text() + "default_hooks['checkpoint'].update(interval=3)\n")
    assert exit_code('train', path, '--work-dir', work_dir) == 130
    assert len(writes) == 2
    assert read_file(work_dir / 'iter_3.pth')['meta']['iter'] == 3
    assert not list(work_dir.glob('*.unfinished'))
    told = f'nothing newer was saved. The same command with --resume goes on from {work_dir}/iter_3'
    assert told in capsys.readouterr().out


def test_a_loop_by_epochs_says_that_it_goes_on_less_exactly(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture
) -> None:
    hook = f"'SignalAt', moment='train', iteration=2, signals=({int(signal.SIGINT)},)"
    path = config(tmp_path, data, hook)
    path.write_text(
        path.read_text()
        + "train_cfg = dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=2)\n"
        + "train_dataloader['sampler'] = dict(type='DefaultSampler', shuffle=True)\n"
    )
    assert exit_code('train', path, '--work-dir', tmp_path / 'work') == 130
    assert 'within epoch 1, which --resume begins anew' in capsys.readouterr().out


def test_outside_the_main_thread_it_does_nothing() -> None:
    said: list[str] = []
    runner: Any = SimpleNamespace(logger=SimpleNamespace(info=said.append))
    hook, before = ViT5InterruptHook(), handlers()

    def run() -> None:
        hook.before_train(runner)
        hook.before_train_iter(runner)
        hook.after_train(runner)
        said.append('end')

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(said) == 2
    assert handlers() == before


def test_what_an_interrupted_run_tells_does_not_depend_on_the_hook(tmp_path: Path) -> None:
    told = load_tool('train').told
    assert 'there is nothing to go on from' in told(KeyboardInterrupt(), tmp_path)
    (tmp_path / 'last_checkpoint').write_text('/elsewhere/iter_8.pth')
    assert 'there is nothing to go on from' in told(KeyboardInterrupt(), tmp_path)
    (tmp_path / 'iter_4.pth').touch()
    assert f'goes on from {tmp_path}/iter_4.pth' in told(KeyboardInterrupt(), tmp_path)


def test_a_second_signal_later_on_stops_at_once(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
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
    assert 'nothing was saved' in capsys.readouterr().out


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
