"""What a measurement was made on."""

import os
import platform
import re
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F

from .. import __version__

FLAGS = ('avx2', 'avx512f', 'avx512_bf16', 'amx_bf16')  # those that decide about matrix products


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Processor, its vector units, threads, versions and attention kernels, for a header."""
    about = Path('/proc/cpuinfo')
    text = about.read_text() if about.is_file() else ''
    model = re.search(r'^model name\s*: (.+)$', text, re.MULTILINE)
    flags = set(re.findall(r'\w+', (re.search(r'^flags\s*:(.+)$', text, re.MULTILINE) or [''])[0]))
    found: dict[str, Any] = {
        'processor': model[1] if model else platform.processor(),
        'vector units': [flag for flag in FLAGS if flag in flags],
        'cores': os.cpu_count(),
        'threads': torch.get_num_threads(),
        'torch': torch.__version__,
        'timm': timm.__version__,
        'vit5_dense': __version__,
    }
    if device.type == 'cuda':
        found['device'] = torch.cuda.get_device_name(device)
    return found


def sdpa_kernel(shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> str:
    """Name of the operator that ``scaled_dot_product_attention`` chooses for a shape.

    Args:
        shape: (B, heads, N, D).
        dtype: Of the arithmetic.
        device: Where.
    """
    x = torch.zeros(shape, dtype=dtype, device=device)
    activities = [torch.profiler.ProfilerActivity.CPU]  # operators, on whatever device they run
    with torch.inference_mode(), torch.profiler.profile(activities=activities) as profile:
        F.scaled_dot_product_attention(x, x, x)
    names = {event.key for event in profile.key_averages()}
    chosen = [name for name in names if re.match(r'aten::_scaled_dot_product\w+_attention', name)]
    return min(chosen, key=len, default='unknown').removeprefix('aten::')
