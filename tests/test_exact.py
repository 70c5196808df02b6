"""A run that is resumed equals one that never stopped."""

import pickle
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from tiny_run import call, scenes, write_config
from vit5_dense.exact import Draw, NumberedBatches, exact_loader, seeded
from vit5_dense.hooks import ViT5ExactHook

# Augmentation, dropped branches and, for detectors, sampled boxes all draw random numbers.
EXTRA = """
model['backbone']['drop_path_rate'] = 0.3
train_cfg = dict(max_iters=6, val_interval=6)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=3))
train_dataloader.update(num_workers={workers}, persistent_workers={workers} > 0)
"""


class Noise(Dataset):
    """Samples of an index and of random numbers from everywhere."""

    metainfo: ClassVar = {'classes': ('a',)}

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> list[float]:
        return [index, random.random(), np.random.rand(), torch.rand(()).item()]


def noise_loader(workers: int = 0) -> DataLoader:
    loader = DataLoader(Noise(), batch_size=2, num_workers=workers, collate_fn=list, shuffle=False)
    return exact_loader(loader, seed=3)


def take(loader: DataLoader, number: int, start: int = 0) -> list[Any]:
    loader.batch_sampler.start = start
    batches = iter(loader)
    return [next(batches) for _ in range(number)]


def test_a_draw_is_an_index_that_survives_the_way_to_a_worker() -> None:
    draw = pickle.loads(pickle.dumps(Draw(5, 12)))
    assert (draw, draw.number) == (5, 12)
    assert [10, 11, 12, 13, 14, 15][draw] == 15


def test_random_numbers_within_are_determined_and_those_outside_untouched() -> None:
    def numbers() -> list[float]:
        return [random.random(), np.random.rand(), torch.rand(()).item()]

    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    expected = numbers() + numbers()
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    found = numbers()
    inside = []
    for key in [(1, 2), (1, 2), (1, 3), (2, 1)]:
        with seeded(*key):
            inside.append(numbers())
    assert found + numbers() == expected
    assert inside[0] == inside[1]
    assert len({number for row in inside[1:] for number in row}) == 9


def test_batches_go_on_where_they_should_and_start_anew_at_the_end() -> None:
    batches = NumberedBatches(BatchSampler(range(5), batch_size=2, drop_last=False))
    assert len(batches) == 3
    batches.start = 2
    found = [next(it) for it in [iter(batches)] for _ in range(3)]
    assert found == [[4], [0, 1], [2, 3]]
    assert [[draw.number for draw in batch] for batch in found] == [[4], [5, 6], [7, 8]]


@pytest.mark.parametrize('workers', [0, 2])
def test_a_sample_depends_on_its_number_only(workers: int) -> None:
    """Not on who loads it, nor on what was loaded before; the next pass has other numbers."""
    whole = take(noise_loader(), 8)
    assert take(noise_loader(workers), 8) == whole
    assert take(noise_loader(workers), 3, start=5) == whole[5:]
    assert [int(sample[0]) for batch in whole for sample in batch] == [*range(7)] * 2
    assert len({sample[1] for batch in whole for sample in batch}) == 14
    assert noise_loader().dataset.metainfo == {'classes': ('a',)}
    assert noise_loader().batch_size == 2


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(found, list | tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_same(*pair)
    elif isinstance(found, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('detector', [False, True], ids=['seg', 'det'])
def test_a_resumed_run_equals_one_that_never_stopped(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, detector: bool, workers: int
) -> None:
    """Weights, optimiser, schedule and losses, bit for bit."""
    if detector:
        pytest.importorskip('mmcv._ext')
    extra = EXTRA.format(workers=workers)
    config = write_config(tmp_path, scenes(tmp_path_factory), extra, detector=detector)
    torch.manual_seed(1)
    call('train', config, '--work-dir', tmp_path / 'whole')
    torch.manual_seed(2)
    half = tmp_path / 'whole' / 'iter_3.pth'
    call('train', config, '--work-dir', tmp_path / 'resumed', '--resume', half)
    whole, resumed = (
        torch.load(tmp_path / name / 'iter_6.pth', weights_only=True)
        for name in ('whole', 'resumed')
    )
    for key in ('state_dict', 'optimizer', 'param_schedulers'):
        assert_same(resumed[key], whole[key])
    losses = [
        content['message_hub']['log_scalars']['train/loss']['log'] for content in (whole, resumed)
    ]
    assert len(losses[0]) == 6
    assert torch.equal(*losses)
    start = torch.load(half, weights_only=True)['state_dict']
    assert not torch.equal(start['backbone.cls_token'], whole['state_dict']['backbone.cls_token'])


@pytest.mark.parametrize(
    ('at', 'begin', 'validated', 'due'),
    [
        (0, 0, None, False),
        (5, 0, None, False),
        (6, 0, None, True),
        (6, 0, 3, True),
        (6, 0, 6, False),
        (6, 7, None, False),
        (10, 0, 9, True),
        (12, 0, None, False),  # every 5 iterations from the tenth on
        (15, 0, None, True),
        (16, 0, 15, True),
    ],
)
def test_a_resumed_run_validates_first_where_that_was_not_done(
    at: int, begin: int, validated: int | None, due: bool
) -> None:
    """Every 3 iterations, from the tenth on every 5, and after the last, the sixteenth."""
    done: list[int] = []

    def decide() -> None:
        loop.val_interval = 3 if at < 9 else 5

    loop = SimpleNamespace(
        iter=at, val_begin=begin, val_interval=3, max_iters=16, _decide_current_val_interval=decide
    )
    runner: Any = SimpleNamespace(
        train_loop=loop,
        val_loop=SimpleNamespace(run=lambda: done.append(at)),
        iter=at,
        logger=SimpleNamespace(info=lambda *args: None),
        message_hub=SimpleNamespace(runtime_info={}),
    )
    runner.message_hub.update_info = runner.message_hub.runtime_info.__setitem__
    hook = ViT5ExactHook()
    if validated is not None:
        hook.after_val_epoch(SimpleNamespace(iter=validated, message_hub=runner.message_hub))  # type: ignore[arg-type]
    hook.before_train_epoch(runner)
    assert done == [at] * due


def test_without_validation_there_is_none() -> None:
    runner = SimpleNamespace(
        train_loop=SimpleNamespace(iter=6, val_begin=1, val_interval=3, max_iters=6), val_loop=None
    )
    told: list[str] = []
    runner.logger = SimpleNamespace(info=lambda *args: told.append(args[0]))
    ViT5ExactHook().before_train_epoch(runner)  # type: ignore[arg-type]
    assert told == []
