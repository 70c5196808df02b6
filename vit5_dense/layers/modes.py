"""Which way a function is run."""

import torch

_is_compiling = getattr(torch.compiler, 'is_compiling', lambda: False)  # torch 2.1 has none


def is_eager() -> bool:
    """Whether operators run one by one: no tracing, no compilation, no export.

    Compilers fuse plain formulas and cannot take apart complex numbers or functions of our own;
    eager code wants as few passes over memory as possible.
    """
    return not (_is_compiling() or torch.jit.is_tracing())


def is_exported() -> bool:
    """Whether operators are written down for other programs, or counted.

    ``torch.compiler.is_exporting`` (since torch 2.7) is true in all compiled code, its flag is not.
    """
    exporting = getattr(torch.compiler, '_is_exporting_flag', True)
    return torch.jit.is_tracing() or (_is_compiling() and exporting)
