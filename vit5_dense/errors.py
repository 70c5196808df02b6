"""Mistakes that a user can make and mend."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar('Result')


class UserError(ValueError):
    """A wrong file, value or setting; the message names it and the remedy."""


def _told(error: Exception, message: str) -> int:
    if os.environ.get('VIT5_DENSE_TRACEBACK'):
        raise error
    print(f'error: {message}', file=sys.stderr)
    return 2


def run_tool(main: Callable[[], Result]) -> int:
    """Run a tool's ``main`` as a program.

    Args:
        main: The tool. An ``int`` that it returns is the exit code, anything else means success.

    Returns:
        Exit code: 2 with the message on stderr for a ``UserError`` and for a file that the system
        refuses (with the traceback, if VIT5_DENSE_TRACEBACK is set in the environment), 130 for an
        interruption.
    """
    try:
        result = main()
    except UserError as error:
        return _told(error, str(error))
    except OSError as error:
        if not (error.filename and error.strerror):
            raise
        return _told(error, f'{error.filename}: {error.strerror}. Choose another place, or free it')
    except KeyboardInterrupt:
        print('interrupted', file=sys.stderr)
        return 130
    return result if isinstance(result, int) else 0


def make_folder(path: str | Path) -> Path:
    """Make a folder for results, before any long work.

    Raises:
        UserError: If it cannot be made or written to.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'folder {folder} cannot be made: {error.strerror}') from error
    if not os.access(folder, os.W_OK):
        raise UserError(f'folder {folder} is not writable')
    return folder
