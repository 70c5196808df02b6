"""What only MMDetection needs; importing it registers all of it.

In a config: ``custom_imports = dict(imports=['vit5_dense', 'vit5_dense.detection'])``.
"""

from ..health import require_det

require_det()

from .coco_dataset import ViT5CocoDataset  # noqa: E402  after the message for a missing library
from .coco_metric import ViT5CocoMetric  # noqa: E402
from .tta import ViT5DetTTAModel  # noqa: E402

__all__ = ['ViT5CocoDataset', 'ViT5CocoMetric', 'ViT5DetTTAModel']
