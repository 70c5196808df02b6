"""Mistakes that a user can make and mend."""

import sys
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar('Result')


class UserError(ValueError):
    """A wrong file, value or setting; the message names it and the remedy."""


def run_tool(main: Callable[[], Result]) -> int:
    """Run a tool's ``main`` as a program.

    Args:
        main: The tool. An ``int`` that it returns is the exit code, anything else means success.

    Returns:
        Exit code: 2 with one line on stderr for a ``UserError``, 130 for an interruption.
    """
    try:
        result = main()
    except UserError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('interrupted', file=sys.stderr)
        return 130
    return result if isinstance(result, int) else 0
