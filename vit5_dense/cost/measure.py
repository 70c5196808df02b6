"""Time and memory of functions, measured so that they compare."""

import ctypes
import gc
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

Call = Callable[[], object]


def interleave(
    calls: Mapping[str, Call],
    rounds: int,
    warmup: int,
    device: torch.device,
    done: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Run functions in turn, so that whatever disturbs the machine meets all of them.

    Args:
        calls: Functions by name.
        rounds: Timed runs of each; every round starts with another one.
        warmup: Runs before, not timed.
        device: It is waited for before and after a timed run.
        done: Called after each run.

    Returns:
        Seconds of every round by name.
    """
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warmup + rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            synchronize(device)
            begin = time.perf_counter()
            calls[name]()
            synchronize(device)
            if number >= warmup:
                times[name].append(time.perf_counter() - begin)
            done()
    return times


def synchronize(device: torch.device) -> None:
    """Wait for what a GPU still has to do."""
    if device.type == 'cuda':
        torch.cuda.synchronize(device)


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """How many times faster the second is: the median of the quotients of each round."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def status(field: str) -> int:
    """Bytes that the kernel reports for this process under a name such as VmRSS."""
    found = re.search(rf'^{field}:\s+(\d+) kB', Path('/proc/self/status').read_text(), re.MULTILINE)
    assert found, f'/proc/self/status has no {field}'
    return int(found[1]) * 1024


def peak_memory(call: Call, device: torch.device) -> int | None:
    """Bytes that a function needs at its peak, above what was there before.

    Args:
        call: The function.
        device: On a GPU the allocator is asked, on a CPU the kernel for the resident set.

    Returns:
        The bytes; None where the kernel cannot reset its peak (no Linux, or not allowed).
    """
    gc.collect()
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    try:
        ctypes.CDLL('libc.so.6').malloc_trim(0)  # gives back what earlier calls have freed
        Path('/proc/self/clear_refs').write_text('5')  # the peak starts from what is there now
    except (OSError, AttributeError):
        return None
    before = status('VmRSS')
    call()
    return status('VmHWM') - before


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The power of the size by which a cost grows: slope of the line through their logarithms."""
    x = torch.tensor(sizes, dtype=torch.float64).log()
    y = torch.tensor(costs, dtype=torch.float64).log()
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())
