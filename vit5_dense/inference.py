"""A trained segmentor or detector as a function of a picture."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope

from .building import build_model, building
from .checkpoint import load_trained
from .config import without_labels
from .errors import UserError
from .instances import Instances, from_mmdet


class Predictor:
    """Model and test pipeline of a framework, for pictures in memory.

    Args:
        cfg: Config of the model.
        checkpoint: Trained weights; every tensor must fit.
        device: Such as 'cpu' or 'cuda:0'.

    Attributes:
        steps: The test pipeline, for pictures in memory.
        classes: Class names, from the checkpoint, else from the config's data set.
        palette: RGB colour of each class.
        meta: All that is known about the data set.

    Raises:
        UserError: If the checkpoint does not fit or no class names are known.
    """

    scope: str

    def __init__(self, cfg: Config, checkpoint: Path, device: str = 'cpu') -> None:
        self.model = build_model(cfg)
        from mmcv.transforms import Compose

        with DefaultScope.overwrite_default_scope(self.scope), building(cfg):
            dataset = cfg.test_dataloader.dataset
            steps = without_labels(dataset.pipeline)
            steps[0] = {'type': 'LoadImageFromNDArray'}
            self.steps = steps
            self.pipeline = Compose(steps)
            meta = load_trained(self.model, checkpoint).get('dataset_meta')
            if meta is None:
                datasets = importlib.import_module(f'{self.scope}.registry').DATASETS
                meta = {
                    **datasets.get(dataset.type).METAINFO,
                    **dataset.get('metainfo', {}),
                    'reduce_zero_label': dataset.get('reduce_zero_label', False),
                }
        if not meta.get('classes'):
            raise UserError(
                f'neither {checkpoint} nor the config names classes: set '
                'test_dataloader.dataset.metainfo.classes'
            )
        self.meta = meta
        self.classes: tuple[str, ...] = tuple(meta['classes'])
        self.palette = meta.get('palette') or random_palette(len(self.classes))
        self.model.to(device)

    def prepare(self, picture: np.ndarray) -> dict[str, Any]:
        """What the test pipeline makes of an RGB picture, (H, W, 3), uint8."""
        image = np.ascontiguousarray(picture[..., ::-1])  # BGR as in training
        return self.pipeline({'img': image, 'img_id': 0, 'img_path': ''})

    def samples(self, items: Sequence[dict[str, Any]]) -> list[Any]:
        """The framework's data samples for prepared pictures; see ``predict``."""
        batch = {key: [item[key] for item in items] for key in ('inputs', 'data_samples')}
        with torch.inference_mode():
            return self.model.test_step(batch)

    def predict(self, items: Sequence[dict[str, Any]]) -> list[Any]:
        """Results for prepared pictures, which must have one size after the pipeline."""
        return [self.result(sample) for sample in self.samples(items)]

    def result(self, sample: Any) -> Any:
        """What is wanted of the framework's data sample."""
        raise NotImplementedError

    def __call__(self, picture: np.ndarray) -> Any:
        """Result for an RGB picture, (H, W, 3), uint8."""
        return self.predict([self.prepare(picture)])[0]


class Segmenter(Predictor):
    """mmsegmentation's model and test pipeline, for pictures in memory; see ``Predictor``.

    Attributes:
        label_offset: 1 where label files count classes from 1 (``reduce_zero_label``), else 0.
    """

    scope = 'mmseg'

    def __init__(self, cfg: Config, checkpoint: Path, device: str = 'cpu') -> None:
        super().__init__(cfg, checkpoint, device)
        self.label_offset = int(bool(self.meta.get('reduce_zero_label')))

    def result(self, sample: Any) -> np.ndarray:
        """Class number of every pixel, (H, W), int64."""
        return sample.pred_sem_seg.data[0].long().cpu().numpy()  # fp32 of a head with one channel

    def logits(self, items: Sequence[dict[str, Any]]) -> list[torch.Tensor]:
        """Logits of prepared pictures in their own sizes, (classes, H, W); see ``predict``.

        A head with one channel for two classes gives a probability instead.
        """
        return [sample.seg_logits.data for sample in self.samples(items)]

    def decide(self, logits: torch.Tensor) -> torch.Tensor:
        """Class number of every pixel, (H, W), from ``logits``, by mmsegmentation's rule."""
        if len(logits) > 1:
            return logits.argmax(dim=0)
        return (logits[0] > self.model.decode_head.threshold).long()


class Detector(Predictor):
    """mmdetection's model and test pipeline, for pictures in memory; see ``Predictor``.

    Attributes:
        category_ids: Id of each class in the annotations it was trained on, from the checkpoint;
            else 1, 2, 3 ...
    """

    scope = 'mmdet'

    def __init__(self, cfg: Config, checkpoint: Path, device: str = 'cpu') -> None:
        super().__init__(cfg, checkpoint, device)
        self.category_ids = self.meta.get('category_ids') or range(1, 1 + len(self.classes))

    def result(self, sample: Any) -> Instances:
        """Objects in a picture, the most certain first."""
        return from_mmdet(sample.pred_instances)


def load_predictor(cfg: Config, checkpoint: Path, device: str = 'cpu') -> Segmenter | Detector:
    """The predictor for the framework of a config; see ``Predictor``."""
    kind = Detector if cfg.get('default_scope') == 'mmdet' else Segmenter
    return kind(cfg, checkpoint, device)


def random_palette(number: int) -> list[list[int]]:
    """RGB colours for classes without a palette; the same at every call."""
    return np.random.default_rng(0).integers(32, 256, (number, 3)).tolist()
