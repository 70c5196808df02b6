"""Checkpoint files: fetched once, read without running what is in them, written whole."""

import argparse
import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import UserError
from .lock import in_turn

OLD_TORCH = (
    '. torch before 2.5 can allow nothing beside the weights: with a newer torch, convert '
    'the file by tools/convert_checkpoint.py or tools/publish_checkpoint.py'
)


class CheckpointError(UserError):
    """A file that is no ViT-5 checkpoint for this backbone; the message says what to do."""


def pointed(pointer: Path) -> Path:
    """The checkpoint that a ``last_checkpoint`` file names; that beside it, if it was moved."""
    named = Path(pointer.read_text().strip())
    beside = pointer.with_name(named.name) if named.name else named
    return beside if os.path.isfile(beside) else named


def resolve_checkpoint(path: str) -> Path:
    """A checkpoint file, or the one that a ``last_checkpoint`` file of a work dir names.

    Raises:
        CheckpointError: If there is no such file.
    """
    file = Path(path)
    if file.name == 'last_checkpoint' and os.path.isfile(file):
        file = pointed(file)
    if not os.path.isfile(file):  # Path.is_file raises for a name that is too long
        raise CheckpointError(f'checkpoint {file} does not exist: correct its path')
    return file


def allow(types: Sequence[Any]) -> AbstractContextManager[None]:
    """Let ``weights_only`` loading read some types more, where torch (since 2.5) can do it."""
    safe_globals = getattr(torch.serialization, 'safe_globals', None)
    return safe_globals(list(types)) if safe_globals else nullcontext()


class Inert:
    """Stands in for what a file names beside weights: takes anything, does nothing."""

    def __init__(self, *_: object) -> None:
        pass


def mmengine_types() -> list[Any]:
    """What mmengine's own training checkpoints hold beside tensors: numpy arrays and histories.

    Histories come back inert: they name functions, and restoring one changes those of its class.
    """
    core: Any = getattr(np, 'core' if np.__version__.startswith('1.') else '_core')
    dtypes = [type(np.dtype(name)) for name in ('float32', 'float64', 'int64', 'uint32')]
    types = [core.multiarray._reconstruct, core.multiarray.scalar, np.ndarray, np.dtype, *dtypes]
    if hasattr(torch.serialization, 'get_unsafe_globals_in_checkpoint'):  # torch 2.6 can rename
        names = ('builtins.getattr', 'mmengine.logging.history_buffer.HistoryBuffer')
        types += [(Inert, name) for name in names]
    return types


def is_safetensors(path: Path) -> bool:
    """Whether a file is taken for safetensors, whatever its name: its header follows 8 bytes."""
    with path.open('rb') as file:
        return file.read(9)[8:] == b'{'


def read_file(path: Path) -> Mapping[str, Any]:
    """Read a checkpoint; its content, not its name, tells safetensors from torch files.

    Args:
        path: A ``.pth`` or ``.safetensors`` file. Torch files are read with ``weights_only=True``;
            ``argparse.Namespace``, which official training files hold, is allowed, and what
            mmengine adds to its own, of which nothing is run.

    Returns:
        The mapping that was saved.

    Raises:
        CheckpointError: If there is no such file, or it is broken, unsafe or something else.
    """
    if not os.path.isfile(path):
        raise CheckpointError(f'{path} is no file: correct the path of the checkpoint')
    try:
        with path.open('rb') as file:
            head = file.read(9)
        if is_safetensors(path):
            with safe_open(path, framework='pt') as file:
                content = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        elif head[:2] in (b'PK', b'\x80\x02'):
            with allow([argparse.Namespace, *mmengine_types()]):
                content = torch.load(path, map_location='cpu', weights_only=True)
        else:
            raise CheckpointError(
                f'{path} is neither a torch nor a safetensors file (it starts with {head!r}): '
                'fetch it again'
            )
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file makes the readers raise anything
        found = re.search(r'(?:GLOBAL|Unsupported class) (\S+)', str(error))
        if found:
            raise CheckpointError(
                f'{path} holds {found[1]}, which is code and not weights: it is not loaded'
                + ('' if hasattr(torch.serialization, 'safe_globals') else OLD_TORCH)
            ) from error
        raise CheckpointError(f'{path} is broken or cut short: replace it') from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f'{path} holds a {type(content).__name__}, not a state dict')
    return content


def number(path: Path) -> int:
    """Iterations or epochs in the name of a regular checkpoint, -1 for any other file."""
    found = re.fullmatch(r'(?:iter|epoch)_(\d+)\.pth', path.name)
    return int(found[1]) if found else -1


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints of a work dir, that to go on from first.

    It is the one that ``last_checkpoint`` names. Before it come those of more iterations or epochs
    written later, where a kill prevented that they were named, and after it all others, the most
    iterations or epochs first.
    """
    files = [path for path in folder.glob('*.pth') if number(path) >= 0]
    files.sort(key=number, reverse=True)
    pointer = folder / 'last_checkpoint'
    if not pointer.is_file():
        return files
    named, since = pointed(pointer), pointer.stat().st_mtime
    newer = [
        path for path in files if number(path) > number(named) and path.stat().st_mtime > since
    ]
    return [*newer, named, *(path for path in files if path not in (named, *newer))]


def last_good_checkpoint(folder: Path) -> Path:
    """The first of ``checkpoints`` that is whole, whatever a kill or a full disk has spoilt.

    Raises:
        CheckpointError: If there is none; with what is wrong with those that are there.
    """
    broken = []
    for file in checkpoints(folder):
        try:
            content = read_file(file)
        except CheckpointError as error:
            broken.append(str(error))
            continue
        if {'meta', 'message_hub', 'optimizer'} <= content.keys():
            for line in broken:
                print_log(f'passed over: {line}', level=logging.WARNING)
            return file
        broken.append(f'{file} holds weights only')
    reasons = '; '.join(broken) or 'it has no checkpoints'
    raise CheckpointError(f'there is nothing to go on from in {folder}: {reasons}')


def download(url: str) -> Path:
    """Fetch a URL into torch hub's checkpoint folder, once.

    Args:
        url: Address of the file, named by the user's config.

    Returns:
        The local file.

    Raises:
        CheckpointError: If it cannot be fetched; the message says where to put it by hand.
    """
    path = Path(torch.hub.get_dir(), 'checkpoints', url.rsplit('/', 1)[-1].split('?')[0])
    if path.exists():
        return path
    part = path.with_name(f'{path.name}.{os.getpid()}.part')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with in_turn(path.with_name(f'{path.name}.lock')):
            if not path.exists():  # another process of the run had its turn
                torch.hub.download_url_to_file(url, str(part))
                read_file(part)  # a connection that ends early is no error to the downloader
                part.replace(path)
    except (CheckpointError, HTTPException, OSError) as error:
        raise CheckpointError(
            f'{url} cannot be downloaded ({error}). Put the file at {path} by hand, or train '
            'without it: tools/train.py --no-pretrained'
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return path


def local_file(checkpoint: str) -> Path:
    """A checkpoint as a path: a URL is downloaded, ``~`` is the home folder."""
    if checkpoint.startswith(('http://', 'https://')):
        return download(checkpoint)
    return Path(checkpoint).expanduser()


def write_file(path: Path, state: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write a state dict to a ``.safetensors`` or ``.pth`` file, whole or not at all.

    Args:
        path: The file; its suffix chooses the format.
        state: Names to tensors.
        meta: Facts about the weights, stored beside them.

    Raises:
        CheckpointError: If the suffix is another one, or the file cannot be written.
    """
    part = path.with_name(f'{path.name}.{os.getpid()}.part')
    try:
        if path.suffix == '.safetensors':
            tensors = {key: value.contiguous() for key, value in state.items()}
            save_file(tensors, part, metadata={'format': 'pt', **meta})
        elif path.suffix == '.pth':
            torch.save({'state_dict': dict(state), 'meta': dict(meta)}, part)
        else:
            raise CheckpointError(f'{path} must end in .safetensors or .pth')
        part.replace(path)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch's writer has no OSError
        reason = getattr(error, 'strerror', None) or ' '.join(str(error).split())
        raise CheckpointError(f'{path} cannot be written: {reason}') from error
    finally:
        with suppress(OSError):  # of a name that is too long
            part.unlink(missing_ok=True)
