"""Configs for the tools: read, checked and fitted to the machine before anything is built."""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict, DictAction

from .config_scheme import SCHEME, config_path
from .errors import UserError
from .option_checks import check_options

LAUNCHERS = ('none', 'pytorch', 'slurm')


class OptionsAction(DictAction):
    """mmengine's ``DictAction``, with a message for an option that is no KEY=VALUE."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Parse KEY=VALUE pairs into a dict."""
        for value in values:
            if '=' not in value:
                parser.error(f'{option_string} {value!r} must be KEY=VALUE')
        super().__call__(parser, namespace, values, option_string)


def tool_parser(description: str | None) -> argparse.ArgumentParser:
    """Command line that all tools share: a config and options that change it."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', help='config file, or vit5_dense::NAME.py')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=OptionsAction,
        metavar='KEY=VALUE',
        help='change the config',
    )
    return parser


def load_config(path: str, options: dict[str, Any] | None = None) -> Config:
    """Read a config file and merge options from the command line.

    Args:
        path: A file, or ``vit5_dense::NAME.py`` for a recipe of this package.
        options: Dotted keys to values, as mmengine's ``DictAction`` parses them.

    Returns:
        The config.

    Raises:
        UserError: If there is no such file, it is no config, or an option does not fit it.
    """
    if path.startswith(SCHEME):
        path = config_path(path)
    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        raise UserError(f'config {path} does not exist (looked in {Path.cwd()})')
    try:
        cfg = Config.fromfile(path)
    except Exception as error:  # a config is code: it may raise anything
        if told := user_error_in(error):
            raise told from told.__cause__
        raise UserError(f'config {path} cannot be read: {describe(error)}') from error
    check_options(cfg, options or {})
    try:
        cfg.merge_from_dict(options or {})
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise UserError(f'--cfg-options does not fit {path}: {describe(error)}') from error
    if not isinstance(cfg.get('model'), dict):
        raise UserError(
            f'config {path} has no model: name a leaf of configs/, not one of its bases'
        )
    return cfg


def user_error_in(error: BaseException) -> UserError | None:
    """The message for a user among the causes of an error, such as what to install."""
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, UserError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


@contextmanager
def reading(path: str) -> Iterator[None]:
    """What a tool takes for granted in a config and is not there, as one message.

    Raises:
        UserError: With the setting that is missing.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f'config {path} lacks what this tool needs: {describe(error)}') from error


def describe(error: Exception) -> str:
    """Kind and words of an error, in one line."""
    return ' '.join(f'{type(error).__name__}: {error}'.split())


def check_device(device: str) -> str:
    """Return a device that torch can use.

    Raises:
        UserError: If it cannot; with what torch says.
    """
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        raise UserError(f'--device {device}: {str(error).splitlines()[0]}') from error
    return device


def usable_cores() -> int:
    """Cores that this process may use, which may be fewer than the machine has."""
    if hasattr(os, 'sched_getaffinity'):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fit_machine(cfg: Config, launcher: str = 'none') -> None:
    """Make a config run where it is: without a GPU, in one process, with few cores.

    Without a GPU or with one process SyncBN becomes BN, which has the same parameters. Without a
    GPU processes talk through gloo. Workers beyond the usable cores are left out.

    Args:
        cfg: Changed in place.
        launcher: 'none', 'pytorch' or 'slurm'.
    """
    cuda = torch.cuda.is_available()
    if not cuda or launcher == 'none':
        replace_type(cfg.model, 'SyncBN', 'BN')
    if not cuda:
        cfg.merge_from_dict({'env_cfg.dist_cfg.backend': 'gloo'})
        if launcher != 'none':
            cfg.model_wrapper_cfg = ConfigDict(
                type='MMDistributedDataParallel', broadcast_buffers=False, device_ids=None
            )
    for name in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        loader = cfg.get(name)
        if loader:
            loader.num_workers = min(loader.get('num_workers', 0), usable_cores())
            loader.persistent_workers = bool(loader.num_workers)


def is_first_process(launcher: str) -> bool:
    """Whether this is process 0 of a run; known from the launcher before the processes join."""
    rank = {'pytorch': 'RANK', 'slurm': 'SLURM_PROCID'}.get(launcher, '')
    return os.environ.get(rank, '0') == '0'


def join_processes(launcher: str) -> None:
    """Join the process group where mmengine cannot: it asks for a GPU for each process.

    Args:
        launcher: 'pytorch' reads the variables that torchrun sets; 'slurm' and 'none' are left to
            mmengine.

    Raises:
        UserError: If the process was not started by torchrun.
    """
    if launcher != 'pytorch':
        return
    if 'LOCAL_RANK' not in os.environ:
        raise UserError(
            '--launcher pytorch needs torchrun: use tools/dist_train.sh CONFIG PROCESSES'
        )
    if not torch.cuda.is_available():
        torch.distributed.init_process_group('gloo')


def replace_type(node: Any, old: str, new: str) -> None:
    """Replace every ``type=old`` below a node of a config."""
    if isinstance(node, dict):
        if node.get('type') == old:
            node['type'] = new
        node = node.values()
    elif not isinstance(node, list | tuple):
        return
    for item in node:
        replace_type(item, old, new)


def without_labels(pipeline: Sequence[Any]) -> list[Any]:
    """A test pipeline that asks for no annotations, also inside ``TestTimeAug``."""
    kept = []
    for step in pipeline:
        if isinstance(step, list | tuple):
            inner = without_labels(step)
            if inner or not step:
                kept.append(inner)
        elif step['type'] != 'LoadAnnotations':
            if 'transforms' in step:
                step = ConfigDict({**step, 'transforms': without_labels(step['transforms'])})
            kept.append(step)
    return kept
