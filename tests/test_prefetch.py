import threading
from operator import itemgetter

import pytest

from vit5_dense.prefetch import prefetch, runs


def test_results_come_in_order_and_a_bounded_number_waits() -> None:
    started: list[int] = []

    def work(number: int) -> int:
        started.append(number)
        return number * number

    results = prefetch(work, range(20), ahead=3)
    assert next(results) == 0
    assert len(started) <= 4
    assert list(results) == [number * number for number in range(1, 20)]
    assert started == list(range(20))


def test_work_goes_on_in_another_thread_while_the_consumer_is_busy() -> None:
    second = threading.Event()

    def work(number: int) -> threading.Thread:
        if number == 1:
            second.set()
        return threading.current_thread()

    results = prefetch(work, range(3), ahead=1)
    assert next(results) is not threading.current_thread()
    assert second.wait(5)


def test_an_error_is_raised_where_its_result_is_due() -> None:
    results = prefetch(lambda number: 1 // number, [1, 0, 1], ahead=1)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_runs_are_of_one_key_and_no_longer_than_the_size() -> None:
    items = ['a1', 'a2', 'a3', 'b1', 'a4', 'a5']
    assert list(runs(items, itemgetter(0), 2)) == [['a1', 'a2'], ['a3'], ['b1'], ['a4', 'a5']]
    assert list(runs([], itemgetter(0), 2)) == []
