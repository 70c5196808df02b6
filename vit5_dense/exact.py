"""Training of which every step depends on its number and the seed, on nothing that came before.

A run that is killed and resumed then equals one that was never stopped, bit for bit on a CPU: the
order of the samples, what augmentation does to each and what the model drops follow from the seed
and from how many samples and iterations came before, whichever process draws them.
"""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_rank, get_world_size
from torch.utils.data import DataLoader, Dataset

DRAW, ITERATION = 0, 1  # what random numbers are for


def seed_all(*key: int) -> None:
    """Set every generator of this process to a state that a few numbers determine."""
    first, second, third = np.random.SeedSequence(key).generate_state(3)
    random.seed(int(first))
    np.random.seed(int(second))
    torch.manual_seed(int(third))


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Random numbers that a few numbers determine; the CPU's generators are put back after."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed_all(*key)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


class Draw(int):
    """Index of a sample, which knows as how manieth of the run it is drawn.

    Attributes:
        number: Counted over all processes of a run, from 0.
    """

    number: int

    def __new__(cls, index: int, number: int) -> 'Draw':
        """Index and number."""
        self = super().__new__(cls, index)
        self.number = number
        return self

    def __reduce__(self) -> tuple[type, tuple[int, int]]:  # for the loading workers
        """Index and number."""
        return Draw, (int(self), self.number)


class SeededDataset(Dataset):
    """A data set whose augmentation of a sample depends on the seed and the number of the draw.

    Args:
        dataset: Everything but indexing is left to it.
        seed: Of the run.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.dataset)

    def __getitem__(self, draw: int) -> Any:
        """The sample that is drawn; an index that is no ``Draw`` counts as its own number."""
        with seeded(self.seed, DRAW, getattr(draw, 'number', draw)):
            return self.dataset[int(draw)]

    def __getattr__(self, name: str) -> Any:
        """What the data set has."""
        if name == 'dataset':  # not there yet while a worker unpacks this object
            raise AttributeError(name)
        return getattr(self.dataset, name)


class NumberedBatches:
    """Endless batches of numbered draws.

    Args:
        batches: A batch sampler of this process; where it ends it starts anew.

    Attributes:
        start: Batches that are passed over at first, without loading them.
    """

    def __init__(self, batches: Any) -> None:
        self.batches: Iterable[list[int]] = batches
        self.sampler: Any = getattr(batches, 'sampler', None)
        self.batch_size: int = batches.batch_size
        self.start = 0

    def __len__(self) -> int:
        """Batches until the sampler starts anew."""
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[Draw]]:
        """Lists of draws."""
        rank, world_size = get_rank(), get_world_size()
        done = epoch = passed = 0
        while True:
            for batch in self.batches:
                numbers = range(done, done + len(batch))
                done += len(batch)
                passed += 1
                if passed > self.start:
                    pairs = zip(batch, numbers, strict=True)
                    yield [Draw(index, number * world_size + rank) for index, number in pairs]
            epoch += 1
            if hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(epoch)


class Continued:
    """Batches of a loader from its start on, for a loop that asks for those before as well.

    Args:
        loader: Over ``NumberedBatches``.
        repeated: Calls at first that are answered with None.
    """

    def __init__(self, loader: DataLoader, repeated: int) -> None:
        self.loader = loader
        self.repeated = repeated
        self._batches: Iterator[Any] | None = None

    def skip_iter(self, num_iters: int) -> None:
        """Nothing: the loader starts where it should."""

    def __next__(self) -> Any:
        """The next batch."""
        if self.repeated:
            self.repeated -= 1
            return None
        if self._batches is None:
            self._batches = iter(self.loader)
        return next(self._batches)


def exact_loader(loader: DataLoader, seed: int) -> DataLoader:
    """A loader of the same samples in the same order, with what this module promises."""
    batches: Any = loader.batch_sampler
    workers: dict[str, Any] = {}
    if loader.num_workers:
        workers = {
            'persistent_workers': loader.persistent_workers,
            'prefetch_factor': loader.prefetch_factor,
            'multiprocessing_context': loader.multiprocessing_context,
        }
    new: DataLoader = DataLoader(
        SeededDataset(loader.dataset, seed),
        batch_sampler=NumberedBatches(batches),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        **workers,
    )
    new.__dict__['batch_size'] = batches.batch_size
    return new  # mmengine scales rates with the attribute, which torch leaves at None
