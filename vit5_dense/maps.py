"""What a ViT-5 sees, as pictures: maps of patches over the picture that the model saw."""

from collections.abc import Sequence

import matplotlib
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .inference import Predictor
from .seen import Seen, look_inside

__all__ = ['Seen', 'cover', 'heat', 'look_inside', 'model_view']

COLOURS = 'inferno'


def cover(
    values: np.ndarray, size: Sequence[int], patch_size: int = 16, smooth: bool = True
) -> np.ndarray:
    """A map of patches in the pixels of the picture, without the padding.

    Args:
        values: A map of ``Seen``, (h, w), or its colours, (h, w, 3), uint8.
        size: Height and width H, W of the picture as the model saw it.
        patch_size: Side of a patch in pixels.
        smooth: Interpolate; else every patch is a square.

    Returns:
        (H, W) or (H, W, 3), in the type of ``values``.

    Raises:
        ValueError: If the map does not cover the picture.
    """
    height, width = (patch_size * side for side in values.shape[:2])
    if height < size[0] or width < size[1]:
        raise ValueError(f'a map of {width} x {height} px does not cover {size[1]} x {size[0]} px')
    rule = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(values).resize((width, height), rule))[: size[0], : size[1]]


def heat(picture: np.ndarray, values: np.ndarray, patch_size: int = 16) -> np.ndarray:
    """Lay a map over its picture: from dark for 0 to yellow for the largest value in the picture.

    Args:
        picture: As the model saw it, RGB, (H, W, 3), uint8; see ``model_view``.
        values: A map of ``Seen``, (h, w), 0 or more. It covers the padded picture.
        patch_size: Side of a patch in pixels.

    Returns:
        RGB picture, (H, W, 3), uint8.
    """
    share = cover(values.astype(np.float32), picture.shape, patch_size)
    share = share / max(float(share.max()), np.finfo(np.float32).tiny)
    colours = 255 * matplotlib.colormaps[COLOURS](share)[..., :3]
    gray = np.asarray(Image.fromarray(picture).convert('L'))[..., None]  # no colours of its own
    return (0.3 * gray + 0.7 * colours).astype(np.uint8)


def model_view(predictor: Predictor, picture: np.ndarray) -> tuple[Tensor, np.ndarray]:
    """A picture as the backbone of a model gets it, and as a person can look at it.

    Where the model slides a window over pictures this is the whole of it.

    Args:
        predictor: The model.
        picture: RGB, uint8, of any size.

    Returns:
        The normalised and padded picture for ``look_inside``, (1, 3, H', W'), and the picture that
        it was made from, after the test pipeline's Resize and without padding, RGB, (H, W, 3),
        uint8. It is the upper left part of the former.
    """
    item = predictor.prepare(picture)
    batch = {key: [item[key]] for key in ('inputs', 'data_samples')}
    with torch.inference_mode():
        inputs = predictor.model.data_preprocessor(batch)['inputs']
    seen = item['inputs'].permute(1, 2, 0).numpy()[..., ::-1]  # BGR, as Predictor gives it
    return inputs, np.ascontiguousarray(seen)
