"""An exported model as a function of a picture, with onnxruntime alone."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .errors import UserError
from .instances import Instances
from .mask_paste import paste_masks
from .onnx_file import open_model
from .results import Meaning

Found = np.ndarray | Instances
NO_MEMORY = re.compile('memory|alloc', re.IGNORECASE)  # in onnxruntime's words


class OnnxModel:
    """An exported segmentor or detector as a function of a picture.

    Args:
        path: File of ``tools/export.py``.
        providers: Execution providers of onnxruntime, the preferred first, such as 'CUDA'; by
            default CUDA where there is one, and the CPU.
        threads: Of the CPU; by default onnxruntime's choice.

    Attributes:
        task: 'segmentation' or 'detection'.
        classes: Class names.
        palette: RGB colour of each class.
        size: Height and width that every picture must have; None where any will do.
        precision: 'fp32', 'fp16' or 'int8'.
        meaning: Of the numbers it gives.

    Raises:
        UserError: If there is no such file, or it is none that can be run here.
    """

    def __init__(
        self,
        path: str | Path,
        providers: Sequence[str] | None = None,
        threads: int | None = None,
    ) -> None:
        self.path = Path(path)
        self._session, found = open_model(self.path, providers, threads)
        self.task = found.task
        self.classes = found.classes
        self.palette = found.palette
        self.size = found.size
        self.precision = found.precision
        self.meaning = Meaning(found.classes, found.palette, found.label_offset)
        if self.task == 'detection':
            self.meaning = self.meaning._replace(category_ids=found.category_ids)
        self._threshold = found.mask_threshold
        self._outputs = [output.name for output in self._session.get_outputs()]
        batch = self._session.get_inputs()[0].shape[0]
        self._together = batch if isinstance(batch, int) else None

    def check(self, picture: np.ndarray) -> None:
        """Check that a picture fits the model.

        Raises:
            UserError: If it is not RGB in bytes, or not of the one size that the model takes.
        """
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
            raise UserError(
                f'{self.path} takes RGB pictures (H, W, 3) of uint8, not {picture.shape} of '
                f'{picture.dtype}'
            )
        if self.size and picture.shape[:2] != self.size:
            (height, width), (rows, columns) = picture.shape[:2], self.size
            raise UserError(
                f'the picture has {width} x {height} pixels, {self.path} takes {columns} x {rows} '
                'alone: resize it, or export the model with --dynamic'
            )

    def batch(self, pictures: Sequence[np.ndarray]) -> list[Found]:
        """Results for pictures of one size; see ``__call__``.

        Raises:
            UserError: If a picture does not fit, or onnxruntime fails, as for want of memory.
        """
        for picture in pictures:
            self.check(picture)
        if len({picture.shape for picture in pictures}) > 1:
            raise UserError('pictures of one batch must have one size')
        if not pictures:
            return []
        together = self._together or len(pictures)
        found: list[Found] = []
        for start in range(0, len(pictures), together):
            some = pictures[start : start + together]
            filled = [*some, *[some[-1]] * (together - len(some))]
            found += self._run(np.stack(filled))[: len(some)]
        return found

    def __call__(self, picture: np.ndarray) -> Found:
        """Result for a picture.

        Args:
            picture: RGB, (H, W, 3), uint8.

        Returns:
            Class number of every pixel, (H, W), whole numbers; of a detector the objects, the most
            certain first.
        """
        return self.batch([picture])[0]

    def _run(self, pictures: np.ndarray) -> list[Found]:
        wanted = [name for name in self._outputs if name != 'logits']
        try:
            values = self._session.run(wanted, {'pictures': pictures})
        except Exception as error:  # onnxruntime has classes for them that derive from nothing else
            number, height, width, _ = pictures.shape
            reason = ' '.join(str(error).split())
            remedy = (
                '. Use a smaller --batch or smaller pictures' if NO_MEMORY.search(reason) else ''
            )
            raise UserError(
                f'{self.path} fails on {number} picture(s) of {width} x {height} pixels: '
                f'{reason}{remedy}'
            ) from error
        named = dict(zip(wanted, values, strict=True))
        if self.task == 'segmentation':
            return list(named['labels'])
        return [
            self._objects(named, number, pictures.shape[1:3]) for number in range(len(pictures))
        ]

    def _objects(
        self, named: dict[str, np.ndarray], number: int, size: tuple[int, int]
    ) -> Instances:
        """Those of one picture of a batch."""
        mine = named['picture'] == number
        boxes, masks = named['boxes'][mine], None
        if 'masks' in named:
            masks = paste_masks(named['masks'][mine], boxes, size, self._threshold)
        return Instances(boxes, named['labels'][mine], named['scores'][mine], masks)
