"""The first tab: drop a picture, see what the model finds."""

from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from ..errors import UserError
from ..large_pictures import Head, check_memory
from ..option_checks import within_memory
from ..pictures import read_picture
from .common import IMAGE, REDRAW, told
from .results import Look, Model, class_rows, draw, named, object_rows, take

CLASSES: dict[str, Any] = {
    '#': 'number',
    '': 'html',
    'class': 'str',
    'pixels': 'number',
    '%': 'number',
}
OBJECTS: dict[str, Any] = {
    '#': 'number',
    '': 'html',
    'class': 'str',
    'score %': 'number',
    'left, top, size': 'str',
    'mask pixels': 'str',
}


class ResultTab:
    """The tab, built where the caller's ``gr.Tab`` is open.

    Args:
        model: Names, colours and the result for a picture.
        detects: Whether results are objects, else class numbers.
        device: That the model is on.
        full: State of each visitor that takes the picture as it was read; None without one.
    """

    def __init__(self, model: Model, detects: bool, device: str, full: gr.State) -> None:
        self.model = model
        self.detects = detects
        self.device = device
        look, only = gr.State(), gr.State()
        columns = OBJECTS if detects else CLASSES
        with gr.Row():
            with gr.Column():
                drop = gr.File(label='drop a picture here', height=140, elem_id='drop')
                status = gr.HTML(told('no picture yet'), elem_id='status')
                shown = gr.Image(label='result', elem_id='shown', **IMAGE)
            with gr.Column():
                opacity = gr.Slider(0, 1, 0.5, step=0.05, label='opacity', elem_id='opacity')
                score = gr.Slider(
                    0, 1, 0.3, step=0.05, label='score', elem_id='score', visible=detects
                )
                table = gr.Dataframe(
                    headers=list(columns),
                    datatype=list(columns.values()),
                    label='a click on a row shows it alone',
                    interactive=False,
                    elem_id='table',
                )
                every = gr.Button(
                    'all objects' if detects else 'all classes', elem_id='every', size='sm'
                )
        setting = [look, opacity, score]
        drop.upload(
            self.drop,
            [drop, opacity, score],
            [drop, status, full, look, only, shown, table],
            concurrency_id='model',
            show_progress_on=shown,
        )
        opacity.input(self.draw, [*setting, only], shown, **REDRAW)
        score.input(self.change_score, setting, [only, shown, table], **REDRAW)
        table.select(self.isolate, setting, [only, shown], **REDRAW)
        every.click(self.show_all, setting, [only, shown], **REDRAW)

    def drop(self, file: str, opacity: float, score: float) -> list[Any]:
        """Run the model on an upload; the only place that does."""
        path = Path(file)
        try:
            picture = read_picture(path)
            height, width = picture.shape[:2]
            name = f'{path.name} ({width} x {height} pixels)'
            if not self.detects:
                head = Head(height, width, False)
                check_memory({Path(name): head}, len(self.model.classes), self.device)
            with within_memory(name):
                look = take(picture, self.model(picture), len(self.model.classes))
        except UserError as error:
            return [None, told(named(error, path), bad=True), None, None, None, None, []]
        shown = self.draw(look, opacity, score, None)
        return [None, told(name), picture, look, None, shown, self.rows(look, score)]

    def rows(self, look: Look, score: float) -> list[Any]:
        """Of the table."""
        if self.detects:
            return object_rows(look, self.model, score)
        return class_rows(look, self.model)

    def draw(
        self, look: Look | None, opacity: float, score: float, only: int | None
    ) -> np.ndarray | None:
        """The overlay."""
        return None if look is None else draw(look, self.model, opacity, score, only)

    def change_score(self, look: Look | None, opacity: float, score: float) -> list[Any]:
        """Show all objects above a score, and list them."""
        rows = [] if look is None else self.rows(look, score)
        return [None, self.draw(look, opacity, score, None), rows]

    def isolate(
        self, look: Look | None, opacity: float, score: float, event: gr.SelectData
    ) -> list[Any]:
        """Show the class, or the object, of a row alone."""
        only = int(event.row_value[0])  # rows may have been sorted on the page
        return [only, self.draw(look, opacity, score, only)]

    def show_all(self, look: Look | None, opacity: float, score: float) -> list[Any]:
        """Show all again."""
        return [None, self.draw(look, opacity, score, None)]
