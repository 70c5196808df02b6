"""A trained segmentor as a function of a picture."""

from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope

from .building import building, require_framework
from .checkpoint import load_trained
from .config import fit_machine, without_labels
from .errors import UserError


class Segmenter:
    """mmsegmentation's model and test pipeline, for pictures in memory.

    Args:
        cfg: Config of the model.
        checkpoint: Trained weights; every tensor must fit.
        device: Such as 'cpu' or 'cuda:0'.

    Attributes:
        classes: Class names, from the checkpoint, else from the config's data set.
        palette: RGB colour of each class.
        label_offset: 1 where label files count classes from 1 (``reduce_zero_label``), else 0.

    Raises:
        UserError: If the checkpoint does not fit or no class names are known.
    """

    def __init__(self, cfg: Config, checkpoint: Path, device: str = 'cpu') -> None:
        require_framework(cfg)
        from mmcv.transforms import Compose
        from mmseg.registry import DATASETS, MODELS
        from mmseg.utils import register_all_modules

        register_all_modules(init_default_scope=False)
        DefaultScope.get_instance('vit5_dense', scope_name='mmseg')
        with DefaultScope.overwrite_default_scope('mmseg'), building(cfg):
            fit_machine(cfg)
            cfg.model.backbone.init_cfg = None
            dataset = cfg.test_dataloader.dataset
            self.model = MODELS.build(cfg.model)
            steps = without_labels(dataset.pipeline)
            steps[0] = {'type': 'LoadImageFromNDArray'}
            self.pipeline = Compose(steps)
            meta = load_trained(self.model, checkpoint).get('dataset_meta')
            if meta is None:
                meta = {
                    **DATASETS.get(dataset.type).METAINFO,
                    **dataset.get('metainfo', {}),
                    'reduce_zero_label': dataset.get('reduce_zero_label', False),
                }
        if not meta.get('classes'):
            raise UserError(
                f'neither {checkpoint} nor the config names classes: set '
                'test_dataloader.dataset.metainfo.classes'
            )
        self.classes: tuple[str, ...] = tuple(meta['classes'])
        self.palette = meta.get('palette') or random_palette(len(self.classes))
        self.label_offset = int(bool(meta.get('reduce_zero_label')))
        self.model.to(device).eval()

    @torch.inference_mode()
    def __call__(self, picture: np.ndarray) -> np.ndarray:
        """Class number of every pixel.

        Args:
            picture: RGB, (H, W, 3), uint8.

        Returns:
            Class numbers, (H, W), int64.
        """
        item = self.pipeline(
            {'img': np.ascontiguousarray(picture[..., ::-1])}
        )  # BGR as in training
        batch = {'inputs': [item['inputs']], 'data_samples': [item['data_samples']]}
        return self.model.test_step(batch)[0].pred_sem_seg.data[0].cpu().numpy()


def random_palette(number: int) -> list[list[int]]:
    """RGB colours for classes without a palette; the same at every call."""
    return np.random.default_rng(0).integers(32, 256, (number, 3)).tolist()
