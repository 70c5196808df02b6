import gc
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tiny_run import Run, trained, write_config
from vit5_dense.building import build_model
from vit5_dense.config import load_config
from vit5_dense.errors import UserError
from vit5_dense.inference import Segmenter
from vit5_dense.tiling import axis_spans, check_tiles, count_tiles, for_tiles, merge, segment

Load = Callable[..., Segmenter]


class LocalSegmenter:
    """A segmentor of 5 classes whose view reaches a number of pixels, with zeros around a picture.

    Attributes:
        batches: Number of pictures in each call.
    """

    def __init__(self, reach: int) -> None:
        size = 2 * reach + 1
        self.conv = nn.Conv2d(3, 5, size, padding=reach, bias=False)
        nn.init.normal_(self.conv.weight)
        self.batches: list[int] = []

    def prepare(self, picture: np.ndarray) -> dict[str, Any]:
        return {'inputs': torch.from_numpy(picture / 255 - 0.5).permute(2, 0, 1).float()}

    def logits(self, items: Sequence[dict[str, Any]]) -> list[Tensor]:
        self.batches.append(len(items))
        with torch.inference_mode():
            return list(self.conv(torch.stack([item['inputs'] for item in items])))

    def decide(self, logits: Tensor) -> Tensor:
        return logits.argmax(0)


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory)


@pytest.fixture
def load(run: Run) -> Load:
    """Builder of the trained model, fitted to tiles, with options for its config."""

    def build(checkpoint: Path = run.checkpoint, **options: object) -> Segmenter:
        cfg = load_config(str(run.config))
        cfg.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
        for_tiles(cfg)
        return Segmenter(cfg, checkpoint)

    return build


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)


def test_spans_have_the_numbers_worked_out_by_hand() -> None:
    spans = axis_spans(50, tile=20, overlap=8)
    assert [(s.start, s.stop) for s in spans] == [(0, 20), (12, 32), (24, 44), (30, 50)]
    assert [s.first for s in spans] == [0, 14, 26, 35]  # 2 before the middles 16, 28 and 37
    assert [s.last for s in spans] == [18, 30, 39, 50]
    assert [s.done for s in spans] == [14, 26, 35, 50]
    assert spans[0].weights.tolist() == [1.0] * 14 + [0.875, 0.625, 0.375, 0.125]


@pytest.mark.parametrize('overlap', [0, 1, 3, 4, 8, 11, 15])
@pytest.mark.parametrize('length', [1, 15, 16, 17, 18, 31, 32, 33, 100])
def test_every_pixel_is_shared_out_by_whole_tiles(length: int, overlap: int) -> None:
    spans = axis_spans(length, 16, overlap)
    total = torch.zeros(length)
    for span in spans:
        assert span.stop - span.start == min(16, length)
        assert 0 <= span.start <= span.first < span.done <= span.last <= span.stop <= length
        assert span.weights.min() >= 0
        total[span.first : span.last] += span.weights
    assert_close(total, torch.ones(length))
    assert [s.first for s in spans] == [0, *(s.done for s in spans[:-1])]
    assert spans[-1].done == length
    for before, after in pairwise(spans):
        assert before.stop - after.start >= overlap
        edge = min(before.stop - before.last, after.first - after.start)
        assert edge >= overlap // 4, 'the pixels next to an edge are dropped'


def test_a_picture_that_a_tile_covers_is_one_tile_of_full_weight() -> None:
    for length in (1, 16):
        (span,) = axis_spans(length, 16, 8)
        assert span.weights.tolist() == [1.0] * length


@pytest.mark.parametrize(
    ('reach', 'tile', 'overlap'),
    [(2, 32, 8), (3, 32, 15), (0, 32, 0), (0, 16, 3), (3, 16, 12), (3, 16, 13), (4, 64, 16)],
)
@pytest.mark.parametrize('size', [(97, 131), (33, 40), (1, 70), (70, 1), (64, 64)])
def test_a_model_that_sees_a_quarter_of_the_overlap_shows_no_seams(
    size: tuple[int, int], reach: int, tile: int, overlap: int
) -> None:
    segmenter, picture = LocalSegmenter(reach), noise(*size)
    whole = segmenter.logits([segmenter.prepare(picture)])[0].argmax(0)
    for batch in (1, 3):
        labels = segment(segmenter, picture, tile, overlap, batch)
        np.testing.assert_array_equal(labels, whole)
    assert len(np.unique(labels)) > 1


def test_logits_pass_from_tile_to_tile_in_a_straight_line() -> None:
    """Four constant tiles of 0 and 1 above, 2 and 3 below."""
    spans = axis_spans(24, tile=16, overlap=8)
    tiles = iter([torch.full((1, 16, 16), float(number)) for number in range(4)])
    parts: list[Tensor] = []

    def decide(logits: Tensor) -> Tensor:
        parts.append(logits[0].clone())
        return logits[0]

    merge(tiles, spans, spans, decide)
    seen = torch.cat((torch.cat(parts[:2], 1), torch.cat(parts[2:], 1)))
    line = torch.tensor([0.0] * 10 + [0.125, 0.375, 0.625, 0.875] + [1.0] * 10)
    assert_close(seen, 2 * line[:, None] + line[None, :])


def live_numbers(channels: int) -> int:
    """Size of all storages that hold tensors of so many channels, in numbers."""
    tensors = [t for t in gc.get_objects() if type(t) is Tensor and t.shape[:1] == (channels,)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values()) // 4


@pytest.mark.parametrize('height', [80, 144])
def test_only_strips_of_half_the_overlap_wait_for_the_next_tile(height: int) -> None:
    """However high the picture is: 37 classes, tiles of 32 that share 16."""
    rows, columns = axis_spans(height, 32, 16), axis_spans(56, 32, 16)
    held = []

    def tiles() -> Iterator[Tensor]:
        for _ in range(len(rows) * len(columns)):
            held.append(live_numbers(37))
            yield torch.randn(37, 32, 32)

    labels = merge(tiles(), rows, columns, lambda logits: logits.argmax(0))
    assert labels.shape == (height, 56)
    assert held[0] == 0
    assert max(held) > 37 * 8 * 56, 'the strip is seen'
    assert max(held) <= 37 * (8 * 56 + 8 * 32)


def test_a_batch_is_of_tiles_and_each_is_told_of() -> None:
    segmenter, ticks = LocalSegmenter(0), []
    segment(segmenter, noise(40, 60), 16, 4, 3, ticks.append)
    assert count_tiles((40, 60), 16, 4) == 3 * 5
    assert ticks == [1] * 15
    assert segmenter.batches == [3] * 5


@pytest.mark.parametrize('size', [(1, 1), (1, 40), (15, 33), (97, 131), (160, 160)])
def test_one_tile_gives_the_labels_of_the_whole_picture(load: Load, size: tuple[int, int]) -> None:
    segmenter = load()
    expected = segmenter(noise(*size))
    np.testing.assert_array_equal(segment(segmenter, noise(*size), 160, 20), expected)


def test_one_channel_is_decided_by_its_threshold(load: Load, run: Run, tmp_path: Path) -> None:
    head = {'num_classes': 2, 'out_channels': 1, 'threshold': 0.4}
    options = {f'model__decode_head__{key}': value for key, value in head.items()}
    options['model__decode_head__loss_decode__use_sigmoid'] = True
    options['test_dataloader__dataset__metainfo__classes'] = ('no', 'yes')
    cfg = load_config(str(run.config))
    cfg.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
    torch.save(build_model(cfg).state_dict(), tmp_path / 'bare.pth')
    segmenter = load(tmp_path / 'bare.pth', **options)
    expected = segmenter(noise(40, 60))
    np.testing.assert_array_equal(segment(segmenter, noise(40, 60), 64, 8), expected)
    model = SimpleNamespace(decode_head=SimpleNamespace(threshold=0.4))
    chances = torch.tensor([[[0.3, 0.5]]])
    assert Segmenter.decide(SimpleNamespace(model=model), chances).tolist() == [[False, True]]


@pytest.mark.parametrize('window', [None, 32], ids=['whole', 'slide'])
@pytest.mark.parametrize('size', [(97, 131), (1, 200), (65, 17)])
def test_every_pixel_of_any_size_gets_a_class(
    load: Load, window: int | None, size: tuple[int, int]
) -> None:
    slide = {'mode': 'slide', 'crop_size': (window, window), 'stride': (20, 20)}
    segmenter = load(**({f'model__test_cfg__{k}': v for k, v in slide.items()} if window else {}))
    labels = segment(segmenter, noise(*size), 48, 12, batch=2)
    assert (labels.shape, labels.dtype) == (size, np.uint16)
    assert labels.max() < 12


def test_tiles_keep_the_resolution_of_the_picture(load: Load) -> None:
    resize = {'type': 'Resize', 'scale': (256, 32), 'keep_ratio': True}
    pipeline = [{'type': 'LoadImageFromFile'}, resize, {'type': 'PackSegInputs'}]
    segmenter = load(test_dataloader__dataset__pipeline=pipeline)
    assert segmenter.prepare(noise(48, 64))['inputs'].shape == (3, 48, 64)


def test_a_detector_is_refused_with_the_remedy(tmp_path: Path) -> None:
    config = write_config(tmp_path, tmp_path, detector=True)
    with pytest.raises(UserError, match=r'--tile is for segmentation.*leave --tile'):
        for_tiles(load_config(str(config)))


def test_an_overlap_is_an_eighth_unless_given() -> None:
    assert check_tiles(1024, None) == 128
    assert check_tiles(16, 15) == 15
    assert check_tiles(16, 0) == 0


@pytest.mark.parametrize(
    ('tile', 'overlap', 'part'),
    [
        (15, None, '--tile 15'),
        (0, None, '--tile 0'),
        (-64, 8, '--tile -64'),
        (64, 64, '--overlap 64'),
        (64, -1, '--overlap -1'),
        (None, 8, '--overlap 8'),
    ],
)
def test_tiles_that_cannot_be_are_refused(tile: int | None, overlap: int | None, part: str) -> None:
    with pytest.raises(UserError, match=part):
        check_tiles(tile, overlap)
