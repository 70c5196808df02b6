"""The page for one model, and its server."""

import html
import os
from collections.abc import Callable
from typing import Any

import gradio as gr
import numpy as np

from .common import CSS
from .inside import View
from .inside_tab import InsideTab
from .result_tab import ResultTab
from .results import Model

FONTS: dict[str, Any] = {
    'font': ['system-ui', 'sans-serif'],
    'font_mono': ['monospace'],
}  # nothing is fetched


def build_page(
    model: Model,
    detects: bool,
    title: str,
    device: str = 'cpu',
    look_inside: Callable[[np.ndarray], View] | None = None,
) -> gr.Blocks:
    """The page for one model.

    Args:
        model: Names, colours and the result for a picture.
        detects: Whether results are objects, else class numbers.
        title: Of the page.
        device: That the model is on.
        look_inside: The inside of the backbone at an RGB picture; None where it cannot be seen:
            then there is no second tab.
    """
    hour = 3600
    with gr.Blocks(
        title=title, analytics_enabled=False, fill_width=True, delete_cache=(600, hour)
    ) as blocks:
        gr.HTML(f'<h3>{html.escape(title)}</h3>')
        full = gr.State()
        with gr.Tabs():
            with gr.Tab('objects' if detects else 'classes'):
                ResultTab(model, detects, device, full)
            if look_inside:
                with gr.Tab('what the backbone sees') as tab:
                    InsideTab(tab, look_inside, full)
    return blocks


def serve(page: gr.Blocks, host: str, port: int) -> str:
    """Start a page's server in a thread of its own; nothing else is contacted.

    Args:
        page: The page.
        host: Address to bind to.
        port: That is free.

    Returns:
        The page's address.
    """
    for name in ('no_proxy', 'NO_PROXY'):  # gradio asks its own server whether it is up
        before = os.environ.get(name)
        os.environ[name] = ','.join(filter(None, [before, '127.0.0.1,localhost', host]))
    _, url, _ = page.launch(
        server_name=f'[{host}]' if ':' in host else host,  # IPv6 as in an address
        server_port=port,
        share=False,
        ssr_mode=False,
        quiet=True,
        prevent_thread_lock=True,
        footer_links=[],
        theme=gr.themes.Default(**FONTS),
        css=CSS,
    )
    return url
