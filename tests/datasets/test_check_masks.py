from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_data import good_mask, save_mask

from vit5_dense.datasets.check_masks import Rule, label_table, look_at_labels
from vit5_dense.datasets.check_report import Found

SIZE = (8, 6)


def look(
    path: Path,
    zero_is_none: bool = False,
    ignored: tuple[int, ...] = (255,),
    palette: Any = (),
    decoder: str = 'pillow',
) -> Found:
    table = label_table(zero_is_none, None)
    rule = Rule('train', table, 3, frozenset(ignored), zero_is_none, palette, decoder)
    return look_at_labels(path, rule, SIZE)


def with_values(*values: float, dtype: Any = np.uint8) -> np.ndarray:
    """A good mask, each value in one pixel of the first row, which is class 0 otherwise."""
    mask = good_mask().astype(dtype)
    mask[0, : len(values)] = values
    return mask


@pytest.mark.parametrize('reduce', [False, True])
@pytest.mark.parametrize('label_map', [None, {0: 255, 1: 0, 2: 1}, {0: 1, 1: 0}])
def test_the_table_is_what_mmseg_makes_of_every_value(
    tmp_path: Path, reduce: bool, label_map: dict[int, int] | None
) -> None:
    from mmseg.datasets.transforms import LoadAnnotations

    path = save_mask(tmp_path / 'a.png', np.arange(256, dtype=np.uint8).reshape(16, 16))
    entry = {'seg_map_path': str(path), 'reduce_zero_label': reduce, 'label_map': label_map}
    loaded = LoadAnnotations()({**entry, 'seg_fields': []})['gt_seg_map']
    np.testing.assert_array_equal(label_table(reduce, label_map), loaded.reshape(-1))


def test_pixels_are_counted_by_class_and_what_is_ignored_apart(tmp_path: Path) -> None:
    found = look(save_mask(tmp_path / 'a.png', with_values(255, 255, 255)))
    assert not found.faults
    assert found.counts.tolist() == [13, 16, 16]
    assert found.ignored == {'ignored pixels': 3}


def test_with_reduce_zero_label_0_is_ignored_and_classes_begin_at_1(tmp_path: Path) -> None:
    found = look(save_mask(tmp_path / 'a.png', with_values(3, 3)), zero_is_none=True)
    assert not found.faults
    assert found.counts.tolist() == [16, 16, 2]
    assert found.ignored == {'ignored pixels': 14}


def test_labels_beyond_the_classes_are_told_with_file_value_and_pixels(tmp_path: Path) -> None:
    path = save_mask(tmp_path / 'a.png', with_values(3, 3, 200))
    (fault,) = look(path).faults
    assert (fault.level, fault.kind, fault.file) == ('error', 'label out of range', str(path))
    assert fault.value.startswith('3 (2 pixels), 200 (1 pixels); there are 3 classes, 0 to 2')
    (fault,) = look(save_mask(path, with_values(4)), zero_is_none=True).faults
    assert fault.value.startswith('4 is class 3 after reduce_zero_label (1 pixels)')


def test_labels_that_heads_ignore_are_no_fault(tmp_path: Path) -> None:
    found = look(save_mask(tmp_path / 'a.png', with_values(250, 255)), ignored=(250, 255))
    assert not found.faults
    assert found.ignored == {'ignored pixels': 2}


@pytest.mark.parametrize('dtype', [np.uint16, np.int32])
def test_values_of_more_than_8_bits_would_become_others(tmp_path: Path, dtype: Any) -> None:
    (fault,) = look(save_mask(tmp_path / 'a.png', with_values(300, dtype=dtype))).faults
    assert fault.level == 'error'
    assert '300 becomes 44 as 8 bits (1 pixels)' in fault.value


@pytest.mark.parametrize('value', [0.5, np.nan, np.inf, -1.0])
def test_floats_that_are_no_class_are_refused(tmp_path: Path, value: float) -> None:
    path = save_mask(tmp_path / 'a.tif', with_values(value, dtype=np.float32))
    fault = look(path).faults[0]
    assert (fault.level, fault.kind) == ('error', 'label out of range')
    assert str(value) in fault.value


def test_16_bits_with_good_labels_are_a_warning_that_names_the_mode(tmp_path: Path) -> None:
    found = look(save_mask(tmp_path / 'a.png', with_values(dtype=np.uint16)))
    (fault,) = found.faults
    assert (fault.level, fault.kind) == ('warning', 'mask of more than 8 bits')
    assert 'I' in fault.value
    assert found.counts.tolist() == [16, 16, 16]


@pytest.mark.parametrize('mode', ['RGB', 'RGBA', 'LA'])
def test_colours_are_no_labels_and_the_mode_is_said(tmp_path: Path, mode: str) -> None:
    path = tmp_path / 'a.png'
    Image.fromarray(good_mask()).convert(mode).save(path)
    (fault,) = look(path).faults
    assert (fault.level, fault.kind) == ('error', 'mask of colours')
    assert fault.value.startswith(f'{mode} with {len(mode)} channels')


def test_indices_of_a_palette_are_labels(tmp_path: Path) -> None:
    mask = Image.fromarray(good_mask(), 'P')
    mask.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0])
    for options in ({}, {'transparency': 0}):
        mask.save(tmp_path / 'a.png', **options)
        found = look(tmp_path / 'a.png')
        assert not found.faults
        assert found.counts.tolist() == [16, 16, 16]


@pytest.mark.parametrize('zero_is_none', [False, True])
def test_a_palette_of_the_data_set_s_own_colours_is_told_from_others(
    tmp_path: Path, zero_is_none: bool
) -> None:
    colors = [[200, 0, 0], [0, 200, 0], [0, 0, 200]]
    path, first = tmp_path / 'a.png', int(zero_is_none)
    mask = Image.fromarray(with_values(255) + np.uint8(first), 'P')
    filler = [[9, 9, 9]] * 256  # with fewer colours Pillow keeps fewer bits
    mask.putpalette([value for color in filler[:first] + colors + filler for value in color][:768])
    mask.save(path)
    assert look(path, zero_is_none, palette=colors).indexed is None
    for other in (colors[::-1], [*colors[:2], [0, 0, 201]]):
        found = look(path, zero_is_none, palette=other)
        assert found.indexed == str(path)
        assert not found.faults
    gray = save_mask(tmp_path / 'b.png', good_mask())
    assert look(gray, palette=colors).indexed is None


def test_with_opencv_a_palette_mask_has_colours_and_no_labels(tmp_path: Path) -> None:
    """As training reads it: mmseg's own step is the oracle."""
    from mmseg.datasets.transforms import LoadAnnotations

    path = tmp_path / 'a.png'
    mask = Image.fromarray(good_mask(), 'P')
    mask.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0])
    mask.save(path)
    entry = {'seg_map_path': str(path), 'reduce_zero_label': False, 'seg_fields': []}
    assert LoadAnnotations(imdecode_backend='cv2')(entry)['gt_seg_map'].shape == (6, 8, 3)
    (fault,) = look(path, decoder='cv2').faults
    assert (fault.level, fault.kind) == ('error', 'mask of colours')
    assert 'P with 3 channels' in fault.value
    assert "imdecode_backend='pillow'" in fault.value
    assert not look(save_mask(path, good_mask()), decoder='cv2').faults
    path.write_bytes(b'no picture')
    assert look(path, decoder='cv2').faults[0].kind == 'unreadable mask'


@pytest.mark.parametrize(('value', 'zero_is_none'), [(255, False), (255, True), (0, True)])
def test_a_mask_that_is_ignored_everywhere_is_a_warning(
    tmp_path: Path, value: int, zero_is_none: bool
) -> None:
    path = save_mask(tmp_path / 'a.png', np.full((6, 8), value, np.uint8))
    (fault,) = look(path, zero_is_none).faults
    assert (fault.level, fault.kind, fault.file) == ('warning', 'mask without a class', str(path))
    assert 'all 48 pixels' in fault.value


def test_a_mask_of_0_and_255_is_suspicious(tmp_path: Path) -> None:
    path = save_mask(tmp_path / 'a.png', (good_mask() > 0).astype(np.uint8) * 255)
    (fault,) = look(path).faults
    assert (fault.level, fault.kind, fault.file) == ('warning', 'mask of 0 and 255', str(path))
    assert not look(save_mask(path, np.zeros((6, 8), np.uint8))).faults


def test_one_bit_masks_have_classes_0_and_1(tmp_path: Path) -> None:
    found = look(save_mask(tmp_path / 'a.png', good_mask() > 0))
    assert not found.faults
    assert found.counts.tolist() == [16, 32, 0]


def test_another_size_than_the_picture_is_an_error_with_both(tmp_path: Path) -> None:
    (fault,) = look(save_mask(tmp_path / 'a.png', good_mask().T.copy())).faults
    assert (fault.level, fault.kind) == ('error', 'size mismatch')
    assert fault.value == 'the mask is 6x8, the picture 8x6 (width x height)'


def test_a_mask_that_is_cut_short_is_unreadable(tmp_path: Path) -> None:
    path = save_mask(
        tmp_path / 'a.png', np.random.default_rng(0).integers(0, 3, (99, 99), np.uint8)
    )
    path.write_bytes(path.read_bytes()[:900])
    (fault,) = look(path).faults
    assert (fault.level, fault.kind, fault.file) == ('error', 'unreadable mask', str(path))
    assert 'truncated' in fault.value
    assert str(path) not in fault.value
