from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.registry import DefaultScope
from torch.testing import assert_close

from tiny_run import Run, trained
from vit5_dense.config import load_config
from vit5_dense.datasets.shapes import CLASSES, PALETTE
from vit5_dense.errors import UserError
from vit5_dense.inference import Segmenter, random_palette

Load = Callable[..., Segmenter]


@pytest.fixture
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Builder of the trained model, with options for its config."""
    run = trained(tmp_path_factory)

    def build(checkpoint: Path = run.checkpoint, **options: object) -> Segmenter:
        cfg = load_config(str(run.config))
        cfg.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
        return Segmenter(cfg, checkpoint)

    return build


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory)


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)


def logits(segmenter: Segmenter, picture: np.ndarray) -> torch.Tensor:
    item = segmenter.pipeline({'img': picture})
    batch = {'inputs': [item['inputs']], 'data_samples': [item['data_samples']]}
    with torch.inference_mode():
        return segmenter.model.test_step(batch)[0].seg_logits.data


def slide(window: int) -> dict[str, object]:
    stride = (2 * window // 3, 2 * window // 3)
    mode = {'mode': 'slide', 'crop_size': (window, window), 'stride': stride}
    return {f'model__test_cfg__{key}': value for key, value in mode.items()}


def test_a_window_that_covers_the_picture_gives_the_whole_picture(load: Load) -> None:
    whole, window = load(), load(**slide(160))
    for size in ((97, 131), (160, 160), (15, 33)):
        expected = logits(whole, noise(*size))
        assert_close(logits(window, noise(*size)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize('window', [None, 64], ids=['whole', 'slide'])
@pytest.mark.parametrize(
    'size', [(1, 1), (1, 40), (40, 1), (15, 16), (17, 3), (97, 131), (64, 200)]
)
def test_every_pixel_of_any_size_gets_a_class(
    load: Load, window: int | None, size: tuple[int, int]
) -> None:
    labels = load(**slide(window) if window else {})(noise(*size))
    assert labels.shape == size
    assert labels.dtype == np.int64
    assert 0 <= labels.min() <= labels.max() < 12


def test_a_picture_is_seen_as_it_is_in_validation(load: Load, run: Run) -> None:
    """From a file in BGR through mmsegmentation's pipeline, and from RGB in memory."""
    from mmseg.registry import DATASETS
    from PIL import Image

    segmenter = load()
    cfg = load_config(str(run.config)).val_dataloader.dataset
    with DefaultScope.overwrite_default_scope('mmseg'):
        item = DATASETS.build(cfg)[0]
    batch = {'inputs': [item['inputs']], 'data_samples': [item['data_samples']]}
    with torch.inference_mode():
        expected = segmenter.model.test_step(batch)[0].pred_sem_seg.data[0].numpy()
    picture = np.asarray(Image.open(item['data_samples'].img_path))
    assert (picture[..., 0] != picture[..., 2]).any()
    np.testing.assert_array_equal(segmenter(picture), expected)


def test_a_resized_picture_gets_labels_of_its_own_size(load: Load) -> None:
    segmenter = load()
    resize = {'type': 'Resize', 'scale': (256, 64), 'keep_ratio': True}
    pipeline = [{'type': 'LoadImageFromFile'}, resize, {'type': 'PackSegInputs'}]
    segmenter = load(test_dataloader__dataset__pipeline=pipeline)
    assert segmenter(noise(97, 131)).shape == (97, 131)


def test_names_and_colours_come_from_the_checkpoint(load: Load) -> None:
    segmenter = load(test_dataloader__dataset__metainfo={'classes': ('x',)})
    assert segmenter.classes == CLASSES
    assert tuple(map(tuple, segmenter.palette)) == PALETTE
    assert segmenter.label_offset == 1


def test_a_bare_state_dict_takes_them_from_the_config(load: Load, run: Run, tmp_path: Path) -> None:
    torch.save(torch.load(run.checkpoint, weights_only=True)['state_dict'], tmp_path / 'bare.pth')
    segmenter = load(tmp_path / 'bare.pth')
    assert segmenter.classes == CLASSES
    assert segmenter.label_offset == 1
    with pytest.raises(UserError, match='names classes'):
        load(tmp_path / 'bare.pth', test_dataloader__dataset__metainfo={'_delete_': True})


def test_colours_that_nobody_chose_are_the_same_at_every_call() -> None:
    assert random_palette(5) == random_palette(5)
    assert len({tuple(color) for color in random_palette(150)}) == 150
    assert random_palette(150)[:5] != [[0, 0, 0]] * 5
