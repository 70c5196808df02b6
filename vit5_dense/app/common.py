"""What both tabs of the page have in common."""

import html
from typing import Any

IMAGE: dict[str, Any] = {
    'interactive': False,
    'format': 'png',
    'buttons': ['download', 'fullscreen'],
    'height': 480,
}
# Redraws, which are quick: while a control moves, all but the last may be left out.
REDRAW: dict[str, Any] = {'show_progress': 'hidden', 'trigger_mode': 'always_last'}
CSS = '.bad {color: #b00020; font-weight: 600}'


def told(text: str, bad: bool = False) -> str:
    """A line for the visitor, as HTML."""
    return f'<span class="{"bad" if bad else "good"}">{html.escape(text)}</span>'
