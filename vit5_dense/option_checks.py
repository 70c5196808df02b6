"""Options of the command line that nothing would read, or that no memory is enough for."""

import difflib
import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner

from .errors import UserError

# What mmengine's runner takes from a config beside its own arguments.
MORE_KEYS = (
    'activation_checkpointing',
    'compile',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
    'model_wrapper_cfg',
    'sync_bn',
)
# In torch's words: a lack of memory on the CPU has no kind of its own.
NO_MEMORY = re.compile('memory|overflow')


def check_options(cfg: Config, options: Mapping[str, Any]) -> None:
    """Refuse an option that nothing would read: mmengine adds what a config does not have.

    Args:
        cfg: The config.
        options: Dotted keys to values.

    Raises:
        UserError: If the first part of a key is neither in the config nor a setting of mmengine's
            runner, with the nearest name; or if a value replaces a group of settings.
    """
    known = {*cfg, *inspect.signature(Runner.__init__).parameters, *MORE_KEYS}
    for key, value in options.items():
        first = key.split('.')[0]
        if first not in known:
            near = difflib.get_close_matches(first, sorted(known), 1)
            raise UserError(
                f'--cfg-options {key}: config {cfg.filename} has no {first}'
                + (f', did you mean {near[0]}?' if near else ': set a key that it has')
            )
        if isinstance(cfg.get(key), dict) and isinstance(value, str | int | float):
            raise UserError(
                f'--cfg-options {key}={value}: {key} has settings of its own, as {key}.NAME=VALUE'
            )


@contextmanager
def within_memory(setting: str) -> Iterator[None]:
    """A lack of memory as one message.

    Args:
        setting: What asks for the memory, such as '--size 512'.

    Raises:
        UserError: With the setting and torch's words.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not NO_MEMORY.search(str(error)):
            raise
        reason = (str(error) or 'out of memory').splitlines()[0]
        raise UserError(f'{setting} is too large for the memory: {reason}') from error
