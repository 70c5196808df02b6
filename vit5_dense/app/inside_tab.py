"""The second tab: what the backbone sees in the picture of the first."""

from collections.abc import Callable
from typing import Any

import gradio as gr
import numpy as np

from ..errors import UserError
from ..maps import cover, heat
from ..option_checks import within_memory
from .common import IMAGE, REDRAW, told
from .inside import PATCH, View, inside, mark, patch_at, token_choices

EMPTY = told('drop a picture on the first tab')


class InsideTab:
    """The tab, built where the caller's ``gr.Tab`` is open.

    Args:
        tab: Itself.
        look_inside: The inside of the backbone at an RGB picture.
        full: State that holds a visitor's picture; None without one.
    """

    def __init__(
        self, tab: gr.Tab, look_inside: Callable[[np.ndarray], View], full: gr.State
    ) -> None:
        self.look_inside = look_inside
        view, patch = gr.State(), gr.State((0, 0))
        note = gr.HTML(EMPTY, elem_id='note')
        with gr.Row():
            what = gr.Radio(token_choices(0), value=PATCH, label='attention of', elem_id='what')
            block = gr.Slider(1, 2, 1, step=1, label='block', elem_id='block')
        with gr.Row():
            picture = gr.Image(label='the picture as the model sees it', elem_id='view', **IMAGE)
            shown = gr.Image(label='map', elem_id='map', **IMAGE)
        tab.select(
            self.open,
            [full, view, what, block],
            [note, view, patch, what, block, picture, shown],
            concurrency_id='model',
            show_progress_on=shown,
        )
        picture.select(self.click, [view, block], [patch, what, picture, shown], **REDRAW)
        for control in (what, block):
            control.input(self.draw, [view, what, block, patch], shown, **REDRAW)

    def open(self, full: np.ndarray | None, view: View | None, what: str, block: int) -> list[Any]:
        """Look inside, once for each picture."""
        nothing = [None, (0, 0), gr.skip(), gr.skip(), None, None]
        if full is None:
            return [EMPTY, *nothing]
        if view is not None and view.source is full:
            return [gr.skip()] * 7
        try:
            with within_memory('the attention in this picture'):
                view = self.look_inside(full)
        except UserError as error:
            return [told(str(error), bad=True), *nothing]
        rows, columns = view.seen.grid
        height, width = view.picture.shape[:2]
        patch = patch_at(view, width // 2, height // 2)
        choices, depth = token_choices(view.seen.num_registers), view.seen.depth
        what = what if what in choices else PATCH
        block = min(block, depth) if block > 1 else depth
        return [
            told(f'{columns} x {rows} patches, {depth} blocks; click on a patch of the picture'),
            view,
            patch,
            gr.update(choices=choices, value=what),
            gr.update(maximum=depth, value=block),
            mark(view, patch),
            self.draw(view, what, block, patch),
        ]

    def click(self, view: View, block: int, event: gr.SelectData) -> list[Any]:
        """Show the attention of the patch below the pointer."""
        patch = patch_at(view, *event.index)
        return [patch, PATCH, mark(view, patch), self.draw(view, PATCH, block, patch)]

    def draw(
        self, view: View | None, what: str, block: int, patch: tuple[int, int]
    ) -> np.ndarray | None:
        """The map over the picture, or the features as a picture."""
        if view is None:
            return None
        found = inside(view, what, block - 1, patch)
        if found.ndim == 3:
            return cover(found, view.picture.shape, view.patch_size, smooth=False)
        return heat(view.picture, found, view.patch_size)
