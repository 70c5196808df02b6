"""Work ahead of a consumer, in order and in bounded memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

A = TypeVar('A')
B = TypeVar('B')


def prefetch(function: Callable[[A], B], items: Iterable[A], ahead: int) -> Iterator[B]:
    """Results of a function in the order of its arguments, computed in another thread meanwhile.

    Args:
        function: Reading and decoding files, for one, leaves the interpreter to others.
        items: Arguments.
        ahead: Results that may wait to be taken, at least 1.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[B]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def runs(items: Iterable[A], key: Callable[[A], object], size: int) -> Iterator[list[A]]:
    """Cut a sequence into neighbours of one key, at most ``size`` of them together."""
    batch: list[A] = []
    for item in items:
        if batch and (len(batch) == size or key(item) != key(batch[0])):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch
