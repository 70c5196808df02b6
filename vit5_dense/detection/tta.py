"""Detection with scales and flips, masks included."""

from typing import Any

import torch
from mmcv.ops import batched_nms
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_flip
from mmengine.model import BaseTTAModel
from mmengine.structures import InstanceData
from torch import Tensor

FLIPPED_AXES = {'horizontal': [-1], 'vertical': [-2], 'diagonal': [-2, -1]}


def undo_flip(boxes: Tensor, masks: Tensor | None, meta: dict[str, Any]) -> tuple[Tensor, Any]:
    """Boxes (n, 4) and masks (n, H, W) of a flipped picture, as in the picture itself."""
    if not meta.get('flip'):
        return boxes, masks
    direction = meta['flip_direction']
    boxes = bbox_flip(boxes, meta['ori_shape'], direction)
    return boxes, None if masks is None else masks.flip(FLIPPED_AXES[direction])


@MODELS.register_module()
class ViT5DetTTAModel(BaseTTAModel):
    """Test-time augmentation for boxes and masks; mmdet's ``DetTTAModel`` knows boxes only.

    The objects found in all scales and flips are put together, and of those that overlap the best
    stays, with the mask that belongs to it.

    Args:
        tta_cfg: ``nms``, options of ``mmcv.ops.batched_nms``, and ``max_per_img``.
        module: The detector.
        data_preprocessor: See ``mmengine.model.BaseTTAModel``.
    """

    def __init__(self, tta_cfg: dict[str, Any], module: Any, data_preprocessor: Any = None) -> None:
        super().__init__(module, data_preprocessor)
        self.tta_cfg = tta_cfg

    def merge_preds(self, data_samples_list: list[list[DetDataSample]]) -> list[DetDataSample]:
        """One sample for each picture from the samples of its scales and flips."""
        return [self._merge(samples) for samples in data_samples_list]

    def _merge(self, samples: list[DetDataSample]) -> DetDataSample:
        found = [sample.pred_instances for sample in samples]
        undone = [
            undo_flip(one.bboxes, one.get('masks'), sample.metainfo)
            for one, sample in zip(found, samples, strict=True)
        ]
        boxes = torch.cat([boxes for boxes, _ in undone])  # (n, 4)
        if not len(boxes):  # which mmcv's suppression refuses
            return samples[0]
        scores = torch.cat([one.scores for one in found])  # (n,)
        labels = torch.cat([one.labels for one in found])  # (n,)
        _, keep = batched_nms(boxes, scores, labels, self.tta_cfg['nms'])
        keep = keep[: self.tta_cfg['max_per_img']]
        merged = InstanceData(bboxes=boxes[keep], scores=scores[keep], labels=labels[keep])
        if all(masks is not None for _, masks in undone):
            merged.masks = torch.cat([masks for _, masks in undone])[keep]  # (k, H, W)
        result = samples[0]
        result.pred_instances = merged
        return result
