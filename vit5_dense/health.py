"""Imports that may fail in a user's environment, each with the line that mends it.

At module level nothing but the standard library and this package's plain modules: the report of
`python -m vit5_dense` has to come where torch or mmengine are missing or broken.
"""

import importlib
import importlib.util
import re
import warnings
from typing import NamedTuple

from .errors import UserError
from .versions import (
    FORK,
    compiled_ops_line,
    install_line,
    installed_distributions,
    is_upstream,
)

CORE = ('torch', 'timm', 'fvcore', 'mmengine')


class MissingDependencyError(UserError, ImportError):
    """Something that only some users need is missing; the message ends with the line to run."""


class Problem(NamedTuple):
    """What is wrong, and the command line that mends it."""

    what: str
    mend: str


def missing_core() -> list[str]:
    """Those of torch, timm, fvcore and mmengine that are not installed."""
    return [module for module in CORE if importlib.util.find_spec(module) is None]


def require_core() -> None:
    """Stop with the install line if torch, timm, fvcore or mmengine is not installed.

    Raises:
        MissingDependencyError: Names what is missing.
    """
    missing = missing_core()
    if missing:
        line = install_line(missing, is_upstream(installed_distributions()))
        raise MissingDependencyError(f'vit5_dense needs {", ".join(missing)}. Run: {line}')


def require_seg() -> None:
    """Stop with the install line if MMSegmentation cannot be imported.

    Raises:
        MissingDependencyError: Says what the import said.
    """
    _require('mmcv')
    _require('mmseg.apis')


def require_compiled_ops() -> None:
    """Stop with the install line if mmcv has no compiled ops, or has those of another torch.

    Raises:
        MissingDependencyError: Says which of the two.
    """
    _require('torch')  # the extension is linked against torch's libraries
    _require('mmcv')
    try:
        importlib.import_module('mmcv._ext')
    except ImportError as error:
        raise MissingDependencyError(
            f'detection needs the compiled ops of mmcv: {error}. '
            f'Run: {compiled_ops_line(installed_distributions())}'
        ) from error


def require_det() -> None:
    """Stop with the install line if MMDetection or the compiled ops it needs are missing.

    Raises:
        MissingDependencyError: Says which.
    """
    require_compiled_ops()
    _require('mmdet.apis')


def require_runtime() -> None:
    """Stop with the install line if onnxruntime, for exported models, cannot be imported.

    Raises:
        MissingDependencyError: Says what the import said.
    """
    _require('onnxruntime')


def require_quantization() -> None:
    """Stop with the install line if onnxruntime or onnx cannot be imported.

    Raises:
        MissingDependencyError: Says which, and what the import said.
    """
    require_runtime()
    _require('onnx')


def require_export() -> None:
    """Stop with the install line if something that exports models cannot be imported.

    Raises:
        MissingDependencyError: Says which, and what the import said.
    """
    require_quantization()
    _require('onnxscript')


def _require(module: str) -> None:
    problem = import_problem(module, installed_distributions())
    if problem:
        raise MissingDependencyError(f'{problem.what}. Run: {problem.mend}')


def import_problem(module: str, dists: dict[str, str]) -> Problem | None:
    """Import `module` and turn what went wrong, if anything, into a problem with its remedy."""
    upstream = is_upstream(dists)
    root = module.partition('.')[0]
    if importlib.util.find_spec(root) is None:
        return Problem(f'{root} is not installed', install_line([root], upstream))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            importlib.import_module(module)
    except Exception as error:  # a version guard is an assert, a broken library anything at all
        lines = str(error).strip().splitlines() or ['']
        what = f'{module} does not import: {type(error).__name__}: {lines[0]}'
        return Problem(what, _remedy(root, error, dists))
    return None


def _remedy(root: str, error: Exception, dists: dict[str, str]) -> str:
    """The line for an import error, by what the error names."""
    upstream = is_upstream(dists)
    text = str(error)
    if 'mmcv._ext' in text:  # upstream's mmseg imports the ops, too
        return compiled_ops_line(dists)
    if 'libGL' in text or 'libgthread' in text:
        return 'apt-get install -y libgl1 libglib2.0-0'
    if 'pkg_resources' in text:
        return install_line(['setuptools'], upstream)
    if root == 'mmseg' and re.search(r"'(ftfy|regex)'", text):
        return install_line(['ftfy', 'regex'], upstream)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return install_line([error.name.partition('.')[0]], upstream)
    # mmseg and mmdet assert the range of mmcv and mmengine that they accept.
    related = list(FORK) if root in FORK else [root]
    wanted = [m for m in related if m == root or importlib.util.find_spec(m) is not None]
    return f'{install_line(wanted, upstream)} --force-reinstall --no-deps'
