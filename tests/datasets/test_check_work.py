import threading
import time

from vit5_dense.datasets.check_work import in_random_order, in_threads, spread


def test_results_come_in_the_order_of_the_items() -> None:
    def slow_first(number: int) -> int:
        time.sleep(0.02 if number == 0 else 0)
        return number * number

    assert list(in_threads(slow_first, range(50))) == [i * i for i in range(50)]
    assert list(in_threads(slow_first, [])) == []


def test_only_a_few_items_are_taken_before_results_are() -> None:
    taken = []

    def items() -> object:
        for number in range(10_000):
            taken.append(number)
            yield number

    results = in_threads(lambda number: threading.get_ident(), items())
    next(results)
    assert len(taken) < 2000
    results.close()


def test_no_item_is_begun_after_the_time_is_over() -> None:
    assert list(in_threads(str, range(9), until=time.monotonic() - 1)) == []
    assert len(list(in_threads(str, range(9), until=time.monotonic() + 60))) == 9


def test_items_are_spread_over_all() -> None:
    assert spread(range(101), 5) == [0, 25, 50, 75, 100]
    assert spread('abc', 5) == ['a', 'b', 'c']
    assert spread([], 5) == []


def test_the_random_order_is_the_same_each_time() -> None:
    order = in_random_order(range(100))
    assert order == in_random_order(range(100))
    assert sorted(order) == list(range(100)) != order
