from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mmengine.logging import MessageHub

from tiny_run import REPO
from vit5_dense.config import load_config
from vit5_dense.hooks import ViT5CheckpointHook

Names = list[str]


def names(folder: Path) -> Names:
    return sorted(path.name for path in folder.glob('*.pth'))


def make_runner(folder: Path, write: Callable[[Path], None]) -> Any:
    """As much of a runner as the hook asks for."""

    def save(out_dir: str, filename: str, *args: Any, **kwargs: Any) -> None:
        write(Path(out_dir, filename))

    folder.mkdir(exist_ok=True)
    said = SimpleNamespace(info=lambda *args: None)
    hub = MessageHub(f'hub of {folder}')
    return SimpleNamespace(
        work_dir=str(folder), logger=said, message_hub=hub, epoch=0, iter=0, save_checkpoint=save
    )


def make_hook(runner: Any, save_best: str | list[str] = 'mIoU') -> ViT5CheckpointHook:
    hook = ViT5CheckpointHook(interval=1, by_epoch=False, max_keep_ckpts=1, save_best=save_best)
    hook.before_train(runner)
    return hook


def train(hook: ViT5CheckpointHook, runner: Any, iterations: range, **scores: float) -> None:
    """Iterations with a checkpoint after each, and a validation after the last."""
    for runner.iter in iterations:
        hook._save_checkpoint(runner)
    runner.iter += 1
    hook.after_val_epoch(runner, scores)


@pytest.mark.parametrize('save_best', ['mIoU', ['mIoU', 'aAcc']], ids=['one', 'several'])
def test_an_older_file_goes_once_the_newer_is_there(tmp_path: Path, save_best: Any) -> None:
    there: list[Names] = []

    def write(path: Path) -> None:
        there.append(names(tmp_path))
        path.touch()

    runner = make_runner(tmp_path, write)
    hook = make_hook(runner, save_best)
    train(hook, runner, range(2), mIoU=1, aAcc=1)
    kinds = ['mIoU'] if save_best == 'mIoU' else ['aAcc', 'mIoU']
    best = [f'best_{kind}_iter_2.pth' for kind in kinds]
    assert names(tmp_path) == [*best, 'iter_2.pth']
    train(hook, runner, range(2, 4), mIoU=2, aAcc=2)
    assert names(tmp_path) == [*(f'best_{kind}_iter_4.pth' for kind in kinds), 'iter_4.pth']
    assert there[1] == ['iter_1.pth'], 'while iter_2 was written'
    assert all('iter_4.pth' in each for each in there[-1 - len(kinds) :])
    assert all(set(best) <= set(each) for each in there[-1 - len(kinds) :])


@pytest.mark.parametrize('failing', ['iter_3.pth', 'best_mIoU_iter_4.pth'])
def test_a_full_disk_takes_nothing_away(tmp_path: Path, failing: str) -> None:
    def write(path: Path) -> None:
        if path.name == failing:
            raise OSError('full')
        path.touch()

    runner = make_runner(tmp_path, write)
    hook = make_hook(runner)
    train(hook, runner, range(2), mIoU=1)
    with pytest.raises(OSError, match='full'):
        train(hook, runner, range(2, 4), mIoU=2)
    last = 'iter_2.pth' if failing == 'iter_3.pth' else 'iter_4.pth'
    assert names(tmp_path) == ['best_mIoU_iter_2.pth', last]


@pytest.mark.parametrize('save_best', ['mIoU', ['mIoU', 'aAcc']], ids=['one', 'several'])
def test_a_copied_run_leaves_the_files_of_its_original(tmp_path: Path, save_best: Any) -> None:
    first = make_runner(tmp_path / 'first', Path.touch)
    train(make_hook(first, save_best), first, range(1), mIoU=1, aAcc=1)
    before = names(tmp_path / 'first')
    copy = make_runner(tmp_path / 'copy', Path.touch)
    for name in before:
        (tmp_path / 'copy' / name).touch()
    copy.message_hub = first.message_hub  # as it comes with the checkpoint
    train(make_hook(copy, save_best), copy, range(1, 2), mIoU=2, aAcc=2)
    assert names(tmp_path / 'first') == before
    assert names(tmp_path / 'copy') == [name.replace('iter_1', 'iter_2') for name in before]


def test_the_same_validation_twice_keeps_its_file(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, Path.touch)
    hook = make_hook(runner)
    train(hook, runner, range(1), mIoU=1)
    hook.after_val_epoch(runner, {'mIoU': 1.1})
    assert names(tmp_path) == ['best_mIoU_iter_1.pth', 'iter_1.pth']


def test_all_recipes_use_it() -> None:
    for path in (REPO / 'configs').glob('*.py'):
        assert load_config(str(path)).default_hooks.checkpoint.type == 'ViT5CheckpointHook'
