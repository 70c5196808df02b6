"""What two processes of torchrun make of the weights, against what one process makes of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rank_runs import Killed, train_all
from tiny_run import call, scenes

State = dict[str, torch.Tensor]


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all runs."""
    return tmp_path_factory.mktemp('ranks')


@pytest.fixture(scope='module', autouse=True)
def killed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """How one of them ended; with it all are made, as starting processes takes longest."""
    return train_all(folder, scenes(tmp_path_factory))


def load(folder: Path, name: str, rank: int, moment: str) -> dict[str, Any]:
    """What a process had at the 'first' or the 'last' moment of a run."""
    return torch.load(folder / name / f'rank{rank}_{moment}.pth', weights_only=True)


def saved(folder: Path, name: str, iteration: int) -> State:
    """Weights in a checkpoint."""
    path = folder / name / f'iter_{iteration}.pth'
    return torch.load(path, weights_only=True)['state_dict']


def distance(first: State, second: State) -> float:
    """The largest difference of a number."""
    assert first.keys() == second.keys()
    return max(float((first[key] - second[key]).abs().max()) for key in first)


def scores(folder: Path, name: str, key: str) -> list[float]:
    """What the validations of a run found; of one log, as one process writes it."""
    (scalars,) = (folder / name).glob('*/vis_data/scalars.json')
    rows = [json.loads(line) for line in scalars.read_text().splitlines()]
    return [row[key] for row in rows if key in row]


@pytest.mark.parametrize('iteration', [1, 2])
def test_a_step_of_two_processes_is_that_of_one_with_their_batches(
    folder: Path, iteration: int
) -> None:
    one, two = saved(folder, 'one', iteration), saved(folder, 'two', iteration)
    assert distance(one, two) < 1e-5
    before = load(folder, 'two', 0, 'first') if iteration == 1 else saved(folder, 'two', 1)
    assert distance(before, two) > 1e-2, 'a step that is no step shows nothing'


@pytest.mark.parametrize('moment', ['first', 'last'])
@pytest.mark.parametrize('name', ['two', 'resumed', 'det'])
def test_all_processes_have_the_same_weights(folder: Path, name: str, moment: str) -> None:
    """After initialisation, after loading a checkpoint and after training, to the bit."""
    if name == 'det':
        pytest.importorskip('mmcv._ext')
    states = [load(folder, name, rank, moment) for rank in range(2)]
    assert distance(*states) == 0


def test_two_processes_go_on_as_if_they_had_not_stopped(folder: Path) -> None:
    for rank in range(2):
        assert distance(load(folder, 'resumed', rank, 'first'), saved(folder, 'two', 1)) == 0
        resumed, straight = (load(folder, name, rank, 'last') for name in ('resumed', 'two'))
        assert distance(resumed, straight) == 0


def test_uneven_batches_are_validated_as_one_process_does(folder: Path) -> None:
    """Five pictures: two processes with three each, in batches of two and one."""
    (score,) = scores(folder, 'two', 'mIoU')
    alone = call('test', folder / 'two.py', folder / 'two' / 'iter_2.pth')
    assert score == pytest.approx(alone['mIoU'], abs=0.02)  # rounded to 2 decimals


def test_a_process_without_objects_does_not_hold_up_the_other(folder: Path) -> None:
    """Three steps: DDP complains at the second of a parameter without a gradient at the first."""
    pytest.importorskip('mmcv._ext')
    first, last = (load(folder, 'det', 1, moment) for moment in ('first', 'last'))
    assert not [name for name in first if torch.equal(first[name], last[name])]
    assert len(scores(folder, 'det', 'coco/bbox_mAP')) == 1
    assert 'find_unused_parameters' not in (folder / 'det' / 'det.py').read_text()


def test_sharded_steps_are_those_of_whole_models(folder: Path) -> None:
    """The backbone's two blocks and the rest are units; each process holds half of the numbers."""
    whole = load(folder, 'two', 0, 'last')
    sharded = [load(folder, 'sharded', rank, 'last') for rank in range(2)]
    for state in sharded:
        assert sorted(state['units']) == ['Block', 'Block', 'EncoderDecoder']
        assert distance(state['weights'], whole) < 1e-5
    numbers = sum(value.numel() for value in whole.values())
    assert sum(state['own'] for state in sharded) == numbers
    assert max(state['own'] for state in sharded) < 0.51 * numbers


def test_a_killed_process_ends_the_run_within_a_minute(killed: Killed) -> None:
    """And no process stays, not even those that load pictures."""
    assert killed.seconds < 60
    assert not killed.left
    assert 'Signal 9 (SIGKILL) received' in killed.log
    cause = killed.log[killed.log.index('Root Cause') :]
    assert 'rank      : 1 ' in cause, 'the process that was killed, not the one that noticed'


def test_a_run_of_which_a_process_was_killed_goes_on_from_its_last_checkpoint(
    killed: Killed, folder: Path
) -> None:
    content = torch.load(killed.checkpoint, weights_only=True)
    done = content['meta']['iter']
    assert done >= 2
    assert killed.checkpoint.name == f'iter_{done}.pth'
    for rank in range(2):
        assert distance(load(folder, 'killed', rank, 'first'), content['state_dict']) == 0
        last = saved(folder, 'killed', done + 2)
        assert distance(load(folder, 'killed', rank, 'last'), last) == 0
