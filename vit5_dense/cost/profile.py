"""Time of a function by operator."""

from collections import Counter

import torch

from .measure import Call

# What a name of torch's operators is counted as; all others are passes over memory.
KINDS = {
    'attention': ('aten::_scaled_dot_product', 'aten::_flash', 'aten::_efficient'),
    # Together: our products are convolutions on some processors.
    'products and convolutions': (
        *('aten::mm', 'aten::addmm', 'aten::bmm', 'aten::_addmm'),
        *('aten::mkldnn_convolution', 'aten::cudnn', 'aten::convolution', 'aten::_slow_conv2d'),
    ),
    'GELU': ('aten::gelu',),
    'copies': ('aten::copy_', 'aten::cat', 'aten::clone', 'aten::stack', 'aten::fill_'),
    'sums and products': ('aten::mul', 'aten::add', 'aten::neg', 'aten::sub', 'aten::div'),
    'norms': ('aten::linalg_vector_norm', 'aten::native_layer_norm', 'aten::rsqrt', 'aten::mean'),
}


def kind_of(name: str) -> str:
    """What an operator is counted as, such as 'attention'; 'rest' if nothing is known of it."""
    found = (
        (len(start), kind)
        for kind, starts in KINDS.items()
        for start in starts
        if name.startswith(start)
    )
    return max(found, default=(0, 'rest'))[1]


def time_operators(call: Call, rounds: int, warmup: int, device: torch.device) -> dict[str, float]:
    """Seconds that kinds of operators take in one run, without what they call.

    Args:
        call: The function.
        rounds: Runs that are averaged.
        warmup: Runs before.
        device: A GPU's own time is taken there, the CPU's else.

    Returns:
        Seconds by kind, the most first.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == 'cuda':
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for _ in range(warmup):
        call()
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(rounds):
            call()
    seconds: Counter[str] = Counter()
    field = 'self_device_time_total' if device.type == 'cuda' else 'self_cpu_time_total'
    for event in profile.key_averages():
        seconds[kind_of(event.key)] += getattr(event, field) / rounds / 1e6
    return dict(seconds.most_common())
