"""Feature pyramid from the maps of a plain backbone, all of one stride."""

from collections.abc import Sequence

from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..layers import LayerNorm2d

# For norm_cfg of the heads behind the pyramid.
MODELS.register_module('ViT5LayerNorm2d', module=LayerNorm2d)


def upsample(in_channels: int, steps: Sequence[int]) -> nn.Sequential:
    """One learned 2x up-sampling for each of ``steps``, its output channels."""
    layers: list[nn.Module] = []
    for channels in steps:
        if layers:
            layers += [LayerNorm2d(in_channels), nn.GELU()]
        layers.append(nn.ConvTranspose2d(in_channels, channels, kernel_size=2, stride=2))
        in_channels = channels
    return nn.Sequential(*layers)


def project(in_channels: int, out_channels: int) -> nn.Sequential:
    """A 1x1 and a 3x3 convolution without bias, each with a norm, as in ViTDet."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=False),
        LayerNorm2d(out_channels),
        nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
        LayerNorm2d(out_channels),
    )


@MODELS.register_module()
class SimplePyramid(BaseModule):
    """Maps at strides 4, 8, 16, 32 (and 64) from one map of stride 16, or from one map per level.

    Finer levels are learned 2x up-samplings (transposed convolutions), the level of the backbone's
    own stride passes as it is, coarser ones are 2x max-poolings that round sizes up, so that no
    level is ever empty. Li et al., Exploring plain vision transformer backbones for object
    detection (arXiv 2203.16527), build it from one map; BEiT's UperNet from one map per level.

    Args:
        in_channels: Channels C of every map.
        out_channels: Without a number every level keeps C channels, for UPerHead or a standard FPN.
            With one, up-sampling halves the channels and every level ends in a 1x1 and a 3x3
            convolution with norms, for RPN and RoI heads.
        strides: Strides of the output in pixels, ascending powers of two.
        in_stride: Stride of the input in pixels, the backbone's ``patch_size``.
        init_cfg: See ``mmengine.model.BaseModule``.

    Attributes:
        strides: Strides of the levels returned. Level sizes for an input map of h x w at stride 16:
            4h x 4w, 2h x 2w, h x w, ceil(h/2) x ceil(w/2), ceil(h/4) x ceil(w/4).

    Raises:
        ValueError: If the strides cannot be reached by doubling and halving ``in_stride``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        strides: Sequence[int] = (4, 8, 16, 32),
        in_stride: int = 16,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        self.strides = tuple(strides)
        self.in_stride = in_stride
        if list(self.strides) != sorted(set(self.strides)) or min(self.strides, default=0) < 1:
            raise ValueError(f'strides {self.strides} must be positive and ascending, each once')
        self.levels = nn.ModuleList()
        for stride in self.strides:
            ratio = max(stride, in_stride) / min(stride, in_stride)
            steps = int(ratio).bit_length() - 1
            if 2**steps != ratio:
                raise ValueError(f'stride {stride} is no power of two times or below {in_stride}')
            channels = in_channels
            if stride < in_stride:
                widths = [in_channels >> (i + 1 if out_channels else 0) for i in range(steps)]
                channels = widths[-1]
                level = upsample(in_channels, widths)
            else:
                level = nn.Sequential(*(nn.MaxPool2d(2, ceil_mode=True) for _ in range(steps)))
            if out_channels:
                level.append(project(channels, out_channels))
            self.levels.append(level)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Build the levels.

        Args:
            maps: One map (B, C, h, w), from which all levels are made, or one for each level.

        Returns:
            Maps in the order of ``strides``, finest first, contiguous in memory.

        Raises:
            ValueError: If there are neither one map nor as many as levels.
        """
        if len(maps) not in (1, len(self.levels)):
            raise ValueError(
                f'SimplePyramid of {len(self.levels)} levels takes 1 or {len(self.levels)} maps, '
                f'but the backbone gave {len(maps)}: set its out_indices'
            )
        if len(maps) == 1:
            maps = list(maps) * len(self.levels)
        # LayerNorm2d leaves channels last in memory; RoIAlign of mmcv takes them for first.
        return tuple(level(x).contiguous() for level, x in zip(self.levels, maps, strict=True))
