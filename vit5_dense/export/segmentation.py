"""The network of a segmentor as a graph: pictures in, logits out."""

import onnx_ir as ir
import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor, nn

from .detection_parts import trace
from .pooling import without_adaptive_pooling
from .preprocess import Normalize


class SegmentationGraph(nn.Module):
    """What mmsegmentation does between the resized picture and its logits, in mode 'whole'.

    Args:
        model: An ``EncoderDecoder``, in evaluation mode.
    """

    def __init__(self, model: BaseModel) -> None:
        super().__init__()
        self.normalize = Normalize(model.data_preprocessor)
        self.model = model

    def forward(self, resized: Tensor) -> Tensor:
        """Logits (B, classes, h, w) of RGB pictures (B, 3, h, w), 0 to 255."""
        height, width = resized.shape[2:]
        x = self.normalize(resized)
        logits = self.model.decode_head(self.model.extract_feat(x))  # (B, classes, h', w')
        corners = self.model.align_corners
        logits = F.interpolate(logits, x.shape[2:], mode='bilinear', align_corners=corners)
        return logits[:, :, :height, :width]


def export_segmentor(model: BaseModel, example: Tensor, dynamic: bool, opset: int) -> ir.Model:
    """The graph of ``SegmentationGraph``.

    Args:
        model: An ``EncoderDecoder``, in evaluation mode.
        example: Pictures, (B, 3, h, w); of any size above one patch if ``dynamic``.
        dynamic: Leave B, h and w free; else they are those of the example.
        opset: Version of the standard operators, from 18.
    """
    with without_adaptive_pooling(model):
        return trace(SegmentationGraph(model), example, [0, 2, 3] if dynamic else [], opset)
