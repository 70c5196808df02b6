"""Which files a check opens, and how: in threads, spread over all of them."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from ..config import usable_cores

A = TypeVar('A')
B = TypeVar('B')


def in_threads(
    function: Callable[[A], B], items: Iterable[A], until: float = math.inf
) -> Iterator[B]:
    """Results in the order of the items, from as many threads as there are cores.

    Decoding leaves the interpreter to other threads, which no fork or import has to prepare.

    Args:
        function: Of one item.
        items: Arguments.
        until: Time on the monotonic clock at which no further item is begun.
    """
    workers = usable_cores()
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[B]] = deque()
        for item in items:
            if time.monotonic() > until:
                break
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def spread(items: Sequence[A], number: int) -> list[A]:
    """At most so many of the items, evenly spaced, the first and the last among them."""
    if len(items) <= number:
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, number).round().astype(int)]


def in_random_order(items: Sequence[A]) -> list[A]:
    """The items in an order that is the same at every call and favours no part of them."""
    return [items[i] for i in np.random.default_rng(0).permutation(len(items))]
