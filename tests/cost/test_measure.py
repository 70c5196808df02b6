import pytest
import torch

from vit5_dense.cost.measure import exponent, interleave, peak_memory, ratio

CPU = torch.device('cpu')


def test_every_function_runs_in_every_round_and_warm_up_is_not_timed() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in 'abc'}
    times = interleave(calls, rounds=3, warmup=1, device=CPU)
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys('abc', 3)
    assert ''.join(order) == 'abc' + 'bca' + 'cab' + 'abc'


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    assert ratio([4.0, 9.0, 100.0], [2.0, 3.0, 4.0]) == 3.0


def test_the_exponent_of_a_power_law() -> None:
    sizes = [2.0, 4.0, 8.0]
    assert exponent(sizes, [3 * x**1.5 for x in sizes]) == pytest.approx(1.5)


def test_peak_memory_is_that_of_the_call() -> None:
    size = 64 * 2**20

    def call() -> None:
        torch.ones(size // 4).sum()

    peak = peak_memory(call, CPU)
    if peak is None:
        pytest.skip('the kernel does not reset its peak')
    assert 0.9 * size < peak < 1.5 * size
