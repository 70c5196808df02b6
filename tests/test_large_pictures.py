from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit5_dense import large_pictures
from vit5_dense.errors import UserError
from vit5_dense.large_pictures import Head, check_memory, free_memory, pixel_limit, read_head


def test_a_head_tells_the_size_and_the_depth(tmp_path: Path) -> None:
    Image.new('RGB', (30, 20)).save(tmp_path / 'a.png')
    Image.fromarray(np.zeros((20, 30), np.uint16)).save(tmp_path / 'b.tif')
    assert read_head(tmp_path / 'a.png') == Head(20, 30, deep=False)
    assert read_head(tmp_path / 'b.tif') == Head(20, 30, deep=True)


def test_what_cannot_be_read_has_no_head(tmp_path: Path) -> None:
    (tmp_path / 'a.png').write_text('hello')
    assert read_head(tmp_path / 'a.png') is None
    assert read_head(tmp_path) is None


def test_the_limit_holds_to_the_pixel_and_is_put_back(tmp_path: Path) -> None:
    before = Image.MAX_IMAGE_PIXELS
    Image.new('RGB', (30, 20)).save(tmp_path / 'a.png')
    with pixel_limit(598):
        assert read_head(tmp_path / 'a.png') is None
    with pytest.warns(Image.DecompressionBombWarning), pixel_limit(600):
        assert read_head(tmp_path / 'a.png')
    with pytest.raises(KeyError), pixel_limit(600):
        raise KeyError
    assert before == Image.MAX_IMAGE_PIXELS


def test_free_memory_is_that_of_this_machine() -> None:
    free = free_memory('cpu')
    if free is None:
        pytest.skip('no /proc/meminfo')
    assert 2**20 < free < 2**50
    assert free_memory('meta') is None


@pytest.mark.parametrize(
    ('tile', 'batch', 'need'),
    [(None, 1, 8 * 100 * 200 * 150), (64, 1, 8 * 64 * 64 * 150), (128, 3, 24 * 100 * 128 * 150)],
)
def test_logits_must_fit_twice(
    monkeypatch: pytest.MonkeyPatch, tile: int | None, batch: int, need: int
) -> None:
    heads = {Path('small.png'): Head(1, 1, False), Path('large.png'): Head(100, 200, False)}
    monkeypatch.setattr(large_pictures, 'free_memory', lambda device: need)
    check_memory(heads, 150, 'cpu', tile, batch)
    monkeypatch.setattr(large_pictures, 'free_memory', lambda device: need - 1)
    with pytest.raises(UserError, match=r'large\.png.*--tile'):
        check_memory(heads, 150, 'cpu', tile, batch)
    monkeypatch.setattr(large_pictures, 'free_memory', lambda device: None)
    check_memory(heads, 150, 'cpu', tile, batch)
