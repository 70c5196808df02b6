"""Which way a function is run."""

import torch

_is_compiling = getattr(torch.compiler, 'is_compiling', lambda: False)  # torch 2.1 has none


def is_eager() -> bool:
    """Whether operators run one by one: no tracing, no compilation, no export.

    Compilers fuse plain formulas and cannot take apart complex numbers or functions of our own;
    eager code wants as few passes over memory as possible.
    """
    return not (_is_compiling() or torch.jit.is_tracing())
