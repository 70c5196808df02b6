"""An exported file in the place of a framework's model, for its evaluation."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.structures import InstanceData, PixelData

from .building import build_runner, check_data, require_framework
from .config import fit_machine, load_config, reading
from .errors import UserError
from .instances import Instances
from .onnx_model import OnnxModel
from .pictures import read_picture


class ExportedModel(BaseModel):
    """Predicts by an exported file whatever pictures the data samples name.

    The test pipeline's own resizing has no effect: the file has its own.

    Args:
        model: The file.

    Attributes:
        seconds: Spent in the file until now.
        pictures: Number of pictures until now.
    """

    def __init__(self, model: OnnxModel) -> None:
        super().__init__()
        self.model = model
        self.seconds, self.pictures = 0.0, 0

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'predict') -> Any:
        """See ``test_step``."""
        raise NotImplementedError('an exported file is only tested')

    def test_step(self, data: dict[str, Any]) -> list[Any]:
        """The data samples of a batch with what is predicted in their pictures."""
        for sample in data['data_samples']:
            picture = read_picture(Path(sample.img_path))
            start = time.perf_counter()
            found = self.model(picture)
            self.seconds += time.perf_counter() - start
            self.pictures += 1
            if isinstance(found, Instances):
                sample.pred_instances = to_mmdet(found)
            else:
                labels = torch.from_numpy(found.astype('int64'))[None]
                sample.pred_sem_seg = PixelData(data=labels)
        return data['data_samples']


def to_mmdet(found: Instances) -> InstanceData:
    """Objects in mmdet's form."""
    values = {
        'bboxes': found.boxes,
        'scores': found.scores,
        'labels': found.labels,
        'masks': found.masks,
    }
    present = {name: torch.from_numpy(x) for name, x in values.items() if x is not None}
    return InstanceData(**present)


def load_exported(path: Path, dataset: Any) -> ExportedModel:
    """An exported file for the evaluation on a data set.

    Args:
        path: The file.
        dataset: Of mmseg or mmdet, with its classes.

    Raises:
        UserError: If it cannot be run, or was made for other classes.
    """
    model = OnnxModel(path)
    wanted = tuple(dataset.metainfo['classes'])
    if tuple(model.classes) != wanted:
        raise UserError(
            f'{path} has the classes {", ".join(model.classes)}; the config names '
            f'{", ".join(wanted)}: export the model with this config'
        )
    return ExportedModel(model)


def score(config: str, files: Sequence[Path]) -> list[dict[str, float]]:
    """Exported files on the test set of a config.

    Args:
        config: As ``load_config`` takes it.
        files: Of one task and one set of classes.

    Returns:
        Of each its scores, in the framework's names, and ``ms``, milliseconds a picture.

    Raises:
        UserError: If the config, its data or a file is wrong.
    """
    cfg = load_config(config)
    with tempfile.TemporaryDirectory() as folder, reading(config):
        cfg.work_dir, cfg.load_from, cfg.resume = folder, None, False
        cfg.model.backbone.init_cfg = None
        fit_machine(cfg)
        require_framework(cfg)
        check_data(cfg, ('test',))
        runner = build_runner(cfg, train=False)
        rows = []
        for file in files:
            model = runner.model = load_exported(file, runner.test_dataloader.dataset)
            scores = {name: float(value) for name, value in runner.test().items()}
            rows.append({**scores, 'ms': 1e3 * model.seconds / model.pictures})
    return rows
