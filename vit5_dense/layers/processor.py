"""What the processor can do, as far as kernels are chosen by it."""

import platform
from pathlib import Path

import torch

_about = Path('/proc/cpuinfo')
_text = _about.read_text() if _about.is_file() else platform.processor()

AMD = 'AuthenticAMD' in _text
AVX512_BF16 = 'avx512_bf16' in _text
CAPABILITY = torch.backends.cpu.get_cpu_capability()  # 'AVX2', 'AVX512', ...: what torch uses
