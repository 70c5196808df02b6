from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import colormaps

from tiny_run import write_config
from vit5_dense.building import build_model
from vit5_dense.config import load_config
from vit5_dense.inference import Detector, Segmenter, load_predictor
from vit5_dense.maps import cover, heat, look_inside, model_view

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
RESIZE = """
test_dataloader['dataset']['pipeline'] = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(80, 80), keep_ratio=True),
    dict(type='PackSegInputs'),
]
"""


def load(folder: Path, extra: str = '', detector: bool = False) -> Segmenter | Detector:
    """A predictor with random weights."""
    path = str(write_config(folder, folder, extra, detector=detector))
    torch.save(build_model(load_config(path)).state_dict(), folder / 'model.pth')
    return load_predictor(load_config(path), folder / 'model.pth')


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)


def normalised(picture: np.ndarray) -> np.ndarray:
    return ((picture - MEAN) / STD).transpose(2, 0, 1).astype(np.float32)


def test_a_segmentor_sees_the_whole_picture(tmp_path: Path) -> None:
    predictor, picture = load(tmp_path), noise(50, 70)
    inputs, view = model_view(predictor, picture)
    np.testing.assert_array_equal(view, picture)
    np.testing.assert_allclose(inputs[0].numpy(), normalised(picture), atol=1e-5)
    assert look_inside(predictor.model.backbone, inputs).grid == (4, 5)


def test_a_resized_picture_is_shown_as_the_model_saw_it(tmp_path: Path) -> None:
    picture = np.kron(noise(5, 10), np.ones((32, 32, 1), np.uint8))  # 160 x 320 of flat squares
    inputs, view = model_view(load(tmp_path, RESIZE), picture)
    assert view.shape == (40, 80, 3)
    np.testing.assert_array_equal(view[4::8, 4::8], picture[16::32, 16::32])
    np.testing.assert_allclose(inputs[0].numpy(), normalised(view), atol=1e-5)


def test_a_detectors_padding_is_not_shown(tmp_path: Path) -> None:
    """It pads to multiples of 160 pixels."""
    predictor, picture = load(tmp_path, detector=True), noise(50, 170)
    inputs, view = model_view(predictor, picture)
    np.testing.assert_array_equal(view, picture)
    assert inputs.shape == (1, 3, 160, 320)
    np.testing.assert_allclose(inputs[0, :, :50, :170].numpy(), normalised(picture), atol=1e-5)
    assert not inputs[0, :, 50:].any()
    seen = look_inside(predictor.model.backbone, inputs)
    assert seen.grid == (10, 20)
    window = seen.attention(0, 1, 5)  # windows of 4 in block 0
    assert (window[:4, 4:8] > 0).all()
    assert (window > 0).sum() == 16
    assert (seen.attention(1, 1, 5) > 0).all()
    assert heat(view, window, seen.patch_size).shape == (50, 170, 3)


def test_colours_run_from_0_to_the_largest_value_in_the_picture() -> None:
    """The map covers 3 x 4 patches of 16 pixels, the picture 2 x 3 of them and a bit."""
    picture = np.full((34, 50, 3), 100, np.uint8)
    values = np.zeros((3, 4), np.float32)
    values[1, 2] = 0.2
    values[2] = 0.0
    shown = heat(picture, values)
    assert shown.shape == picture.shape
    assert shown.dtype == np.uint8
    brightest = np.unravel_index(shown.sum(2).argmax(), (34, 50))
    assert (brightest[0] // 16, brightest[1] // 16) == (1, 2)
    lowest, highest = (
        0.3 * 100 + 0.7 * 255 * np.array(colormaps['inferno'](x)[:3]) for x in (0, 1.0)
    )
    np.testing.assert_allclose(shown[0, 0], lowest, atol=1)
    np.testing.assert_allclose(shown[brightest], highest, atol=1)
    np.testing.assert_array_equal(heat(picture, 7 * values), shown)


def test_what_lies_in_the_padding_does_not_set_the_scale() -> None:
    picture, values = np.zeros((16, 16, 3), np.uint8), np.full((1, 9), 0.1, np.float32)
    values[0, 8] = 100
    np.testing.assert_array_equal(heat(picture, values), heat(picture, values[:, :1]))


def test_a_map_of_zeros_is_dark() -> None:
    shown = heat(np.zeros((16, 16, 3), np.uint8), np.zeros((1, 1), np.float32))
    assert shown.max() < 5


@pytest.mark.parametrize('patch_size', [16, 8])
def test_patches_lie_over_their_pixels(patch_size: int) -> None:
    colours = noise(3, 4)
    found = cover(colours, (2 * patch_size + 1, 4 * patch_size), patch_size, smooth=False)
    expected = np.kron(colours, np.ones((patch_size, patch_size, 1), np.uint8))
    np.testing.assert_array_equal(found, expected[: 2 * patch_size + 1])


def test_a_smooth_map_has_the_values_of_the_patches_at_their_centres() -> None:
    ramp = np.arange(6, dtype=np.float32)[None].repeat(3, 0)
    found = cover(ramp, (48, 96))
    np.testing.assert_allclose(found[20, 16:80], (np.arange(16, 80) + 0.5) / 16 - 0.5, atol=1e-5)


def test_a_map_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match='64 x 48 px does not cover 65 x 48 px'):
        cover(np.zeros((3, 4), np.float32), (48, 65))
