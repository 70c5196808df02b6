"""An exported model file: what its metadata tells, and how onnxruntime opens it.

The metadata has one key, ``vit5_dense``, with the fields of ``Description`` and the number of the
format as JSON.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .errors import UserError
from .health import require_runtime

KEY = 'vit5_dense'
FORMAT = 1
OUTPUTS = {
    'segmentation': ('labels',),
    'detection': ('boxes', 'scores', 'labels', 'picture'),
}
EXPORT = 'export the model again with tools/export.py'


@dataclass(frozen=True)
class Description:
    """What an exported file tells of its model.

    Attributes:
        task: 'segmentation' or 'detection'.
        classes: Class names.
        palette: RGB colour of each class.
        size: Height and width that every picture must have; None where they are free.
        precision: 'fp32', 'fp16' or 'int8'.
        label_offset: Added to class numbers in label files: 1 where they count classes from 1.
        category_ids: A detector's id of each class in the annotations it was trained on.
        mask_threshold: Least probability of a pixel of an object.
    """

    task: str
    classes: tuple[str, ...]
    palette: tuple[tuple[int, ...], ...]
    size: tuple[int, int] | None
    precision: str
    label_offset: int = 0
    category_ids: tuple[int, ...] = ()
    mask_threshold: float = 0.5


def _description(content: Mapping[str, Any]) -> Description:
    """Metadata of a known format as a ``Description``; any error where it is damaged."""
    values = {
        field.name: content[field.name] for field in fields(Description) if field.name in content
    }
    for key in ('classes', 'category_ids'):
        values[key] = tuple(values.get(key, ()))
    values['palette'] = tuple(map(tuple, values['palette']))
    values['size'] = values['size'] and tuple(values['size'])
    found = Description(**values)
    lengths = {len(found.classes), len(found.palette)}
    if found.task == 'detection':
        lengths.add(len(found.category_ids))
    if found.task not in OUTPUTS or len(lengths) > 1:
        raise ValueError(f'task {found.task!r}, {sorted(lengths)} classes')
    return found


def read_description(text: str | None, path: Path) -> Description:
    """Read the metadata of a file.

    Args:
        text: Value of the key ``vit5_dense``; None where the file has none.
        path: For messages.

    Raises:
        UserError: If it is not there, damaged, or of a newer format.
    """
    if text is None:
        raise UserError(f'{path} is an ONNX file, but no model of vit5_dense: {EXPORT}')
    try:
        content = json.loads(text)
        number = int(content['format'])
        found = _description(content) if number <= FORMAT else None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f'{type(error).__name__}: {error}'
        raise UserError(f'{path} has damaged metadata ({reason}): {EXPORT}') from error
    if found is None:
        raise UserError(
            f'{path} has format {number} of a newer vit5_dense, this one reads up to {FORMAT}: '
            'python -m pip install -U vit5_dense'
        )
    return found


def choose_providers(wanted: Sequence[str] | None, available: Sequence[str]) -> list[str]:
    """Execution providers for onnxruntime.

    Args:
        wanted: Names, the preferred first, with or without 'ExecutionProvider'; by default CUDA
            where onnxruntime has it, and the CPU.
        available: Names that onnxruntime has.

    Raises:
        UserError: If one is not available.
    """
    full = {name.removesuffix('ExecutionProvider').lower(): name for name in available}
    if not wanted:
        return [full[name] for name in ('cuda', 'cpu') if name in full]
    short = [name.removesuffix('ExecutionProvider').lower() for name in wanted]
    for name, given in zip(short, wanted, strict=True):
        if name not in full:
            raise UserError(
                f'provider {given} is not in this onnxruntime, which has {", ".join(full)}; CUDA '
                'comes with: python -m pip install onnxruntime-gpu'
            )
    return [full[name] for name in short]


def open_model(
    path: Path, providers: Sequence[str] | None = None, threads: int | None = None
) -> tuple[Any, Description]:
    """Open an exported file.

    Args:
        path: The file.
        providers: See ``choose_providers``.
        threads: Of the CPU; by default onnxruntime's choice.

    Returns:
        onnxruntime's session and what the file tells of the model.

    Raises:
        UserError: If there is no such file, or it is none that this version can run.
        MissingDependencyError: If there is no onnxruntime.
    """
    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        raise UserError(f'there is no model file {path} (looked in {Path.cwd()})')
    require_runtime()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, and told once
    options.intra_op_num_threads = threads or 0
    chosen = choose_providers(providers, onnxruntime.get_available_providers())
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=chosen)
    except Exception as error:  # onnxruntime has classes for them that derive from nothing else
        raise UserError(_refusal(path, str(error), onnxruntime.__version__)) from error
    if providers and chosen[0] not in session.get_providers():
        raise UserError(f'provider {providers[0]} does not start on this machine: leave it out')
    found = read_description(session.get_modelmeta().custom_metadata_map.get(KEY), path)
    lacking = {*OUTPUTS[found.task]} - {output.name for output in session.get_outputs()}
    if lacking or [one.name for one in session.get_inputs()] != ['pictures']:
        raise UserError(f'{path} lacks outputs or inputs of a model for {found.task}: {EXPORT}')
    return session, found


def _refusal(path: Path, reason: str, version: str) -> str:
    """Why onnxruntime does not open a file, and what to do."""
    with path.open('rb') as file:
        start = file.read(1)
    if start != b'\x08':  # of the first field of every ONNX file, the version of its format
        return f'{path} is no ONNX file: name one that tools/export.py wrote'
    reason = ' '.join(reason.split())
    if any(sign in reason.lower() for sign in ('protobuf', 'missing opset')):
        return f'{path} is cut off or damaged: copy it again, or {EXPORT}'
    return f'{path} does not run in onnxruntime {version}: {reason}. Update it, or {EXPORT}'
