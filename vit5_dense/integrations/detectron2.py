"""ViT-5 and its pyramid as detectron2 backbones; needs detectron2 (its main branch was tried).

``configs/detectron2/mask_rcnn_vit5_b_coco.py`` is a LazyConfig that trains Mask R-CNN with them.
"""

import math
from typing import Any

from detectron2.layers import ShapeSpec
from detectron2.modeling.backbone import Backbone
from torch import Tensor

from ..backbones import ViT5
from ..backbones.sizes import layer_depth
from ..necks import SimplePyramid

VIT5 = 'vit5.'  # how names of parameters go on within a ViT5Backbone


class ViT5Backbone(Backbone):
    """The maps of ``ViT5`` under names: ``block11`` is the output of block 11, at stride 16.

    Args:
        checkpoint: ViT-5 file or URL to load, strictly; None leaves random weights. detectron2's
            own ``init_checkpoint`` then stays empty, except to go on from a detectron2 run.
        **options: Those of ``vit5_dense.ViT5``.
    """

    def __init__(self, checkpoint: str | None = None, **options: Any) -> None:
        super().__init__()
        init_cfg = {'type': 'Pretrained', 'checkpoint': checkpoint} if checkpoint else None
        self.vit5 = ViT5(**options, init_cfg=init_cfg)
        self.vit5.init_weights()
        self._out_features = [f'block{i}' for i in self.vit5.out_indices]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Maps (B, C, ceil(H / 16), ceil(W / 16)) of normalised pictures (B, 3, H, W)."""
        return dict(zip(self._out_features, self.vit5(x), strict=True))

    def output_shape(self) -> dict[str, ShapeSpec]:
        """Channels and stride of every map."""
        shape = ShapeSpec(channels=self.vit5.embed_dims, stride=self.vit5.patch_size)
        return dict.fromkeys(self._out_features, shape)


class ViT5SimplePyramid(Backbone):
    """``SimplePyramid`` behind a ``ViT5Backbone``, with maps ``p2`` (stride 4) to ``p6`` (64).

    Args:
        net: Its last map is taken.
        out_channels: Channels of every level.
        strides: Strides of the levels in pixels.
        square_pad: Pictures are padded to squares of this side, in training and in testing, so
            that positions have one scale; 0 pads to whole patches of the coarsest level only.
    """

    def __init__(
        self,
        net: ViT5Backbone,
        out_channels: int = 256,
        strides: tuple[int, ...] = (4, 8, 16, 32, 64),
        square_pad: int = 0,
    ) -> None:
        super().__init__()
        self.net = net
        (name, shape), *_ = reversed(net.output_shape().items())
        self._in_feature = name
        self.pyramid = SimplePyramid(shape.channels, out_channels, strides, shape.stride)
        self._out_features = [f'p{int(math.log2(stride))}' for stride in strides]
        self._out_channels = out_channels
        self._square_pad = square_pad

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Levels (B, out_channels, H / stride, W / stride) of normalised pictures (B, 3, H, W)."""
        levels = self.pyramid([self.net(x)[self._in_feature]])
        return dict(zip(self._out_features, levels, strict=True))

    def output_shape(self) -> dict[str, ShapeSpec]:
        """Channels and stride of every level."""
        return {
            name: ShapeSpec(channels=self._out_channels, stride=stride)
            for name, stride in zip(self._out_features, self.pyramid.strides, strict=True)
        }

    @property
    def size_divisibility(self) -> int:
        """Pictures are padded to a multiple of the coarsest stride, so that levels align."""
        return self.pyramid.strides[-1]

    @property
    def padding_constraints(self) -> dict[str, int]:
        """How detectron2 pads a batch."""
        return {'size_divisibility': self.size_divisibility, 'square_size': self._square_pad}


def get_vit5_lr_decay_rate(name: str, lr_decay_rate: float = 1.0, num_layers: int = 12) -> float:
    """Factor of the learning rate of a parameter, for ``optimizer.params.lr_factor_func``.

    Args:
        name: Name of the parameter in the detector, which may hold a ``ViT5Backbone`` anywhere.
        lr_decay_rate: Factor from one block to the one below it.
        num_layers: Blocks of the backbone.

    Raises:
        ValueError: If ``ViT5`` has no such parameter.
    """
    if VIT5 not in name:
        return 1.0
    depth, depths = layer_depth(name, num_layers, name.partition(VIT5)[0] + VIT5)
    return lr_decay_rate ** (depths - 1 - depth)
