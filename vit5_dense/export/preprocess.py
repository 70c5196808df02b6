"""What happens to a picture before the backbone: normalisation and padding, as a module."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError


class Normalize(nn.Module):
    """Mean, standard deviation, channel order and padding of a data preprocessor.

    Args:
        preprocessor: mmseg's ``SegDataPreProcessor`` or mmdet's ``DetDataPreprocessor``.

    Raises:
        UserError: If it pads pictures to one size, which no other size could be exported for.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, preprocessor: nn.Module) -> None:
        super().__init__()
        options = getattr(preprocessor, 'test_cfg', None) or {}
        if options.get('size') is not None:
            raise UserError(
                f'data_preprocessor.test_cfg.size={options["size"]} cannot be exported: use '
                'size_divisor'
            )
        divisor = getattr(preprocessor, 'pad_size_divisor', None)
        self.divisor = int(divisor or options.get('size_divisor') or 1)
        padding = getattr(preprocessor, 'pad_val', getattr(preprocessor, 'pad_value', 0))
        self.pad_value = float(padding)
        self.keeps_bgr = not preprocessor._channel_conversion  # pictures are loaded as BGR
        neutral = {'mean': 0.0, 'std': 1.0}
        for name, number in neutral.items():
            value = getattr(preprocessor, name, torch.full((3, 1, 1), number))
            self.register_buffer(name, value.detach().clone().float())

    def forward(self, x: Tensor) -> Tensor:
        """Normalise pictures.

        Args:
            x: RGB, (B, 3, h, w), 0 to 255.

        Returns:
            What the backbone takes, (B, 3, h', w'), padded at the bottom and on the right.
        """
        height, width = x.shape[2:]
        if self.keeps_bgr:
            x = x.flip(1)
        x = (x - self.mean) / self.std
        if self.divisor == 1:
            return x
        step = self.divisor
        bottom = (height + step - 1) // step * step - height
        right = (width + step - 1) // step * step - width
        return F.pad(x, (0, right, 0, bottom), value=self.pad_value)
