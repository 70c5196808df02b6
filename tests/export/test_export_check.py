import numpy as np
import pytest

from vit5_dense.export.check import compare_labels, compare_objects
from vit5_dense.export.check_layers import error_of
from vit5_dense.instances import Instances


def objects(*rows: tuple) -> Instances:
    """Each row: left, top, right, bottom, class, score."""
    table = np.array(rows, np.float64).reshape(-1, 6)
    return Instances(table[:, :4], table[:, 4].astype(int), table[:, 5])


def test_pixels_count_whose_class_the_error_cannot_change() -> None:
    """Half of 100 pixels have two classes that differ by 0.01, half by 1.0; the error is 0.009."""
    expected = np.zeros((2, 10, 10))
    expected[0] = 1.0
    expected[1, :5] = 0.99
    logits = expected + 0.009 * np.array([-1, 1])[:, None, None]
    found = compare_labels(logits.argmax(0), logits, expected, 'fp32')
    assert found['agreement'] == found['counted'] == 0.5
    assert found['error'] == pytest.approx(0.009)
    assert found['share'] == pytest.approx(0.009 / 0.495)
    assert found['right'] is True
    wrong = logits.argmax(0)
    wrong[9, 9] = 1
    assert compare_labels(wrong, logits, expected, 'fp32')['right'] is False


def test_without_a_pixel_that_counts_nothing_is_proven() -> None:
    """Two classes everywhere nearly equal: any labels would do."""
    expected = np.random.default_rng(0).normal(size=(1, 8, 8)).repeat(2, axis=0)
    logits = expected + 0.001
    found = compare_labels(logits.argmax(0), logits, expected, 'fp32')
    assert (found['counted'], found['right']) == (0, None)


def test_logits_that_are_off_are_wrong_even_if_the_labels_are_right() -> None:
    expected = np.random.default_rng(0).normal(size=(3, 8, 8))
    assert compare_labels(expected.argmax(0), expected, expected, 'fp32')['right']
    assert not compare_labels(expected.argmax(0), expected * 1.1, expected, 'fp32')['right']


def test_a_large_bias_hides_no_error() -> None:
    """Logits far from zero that hardly depend on the picture, and a file that ignores it."""
    expected = np.array([50.0, -50.0])[:, None, None] + np.linspace(0, 0.1, 64).reshape(8, 8)
    wrong = np.broadcast_to(expected.mean((1, 2), keepdims=True), expected.shape)
    assert compare_labels(wrong.argmax(0), wrong, expected, 'fp32')['right'] is False


def test_one_channel_is_a_probability() -> None:
    expected = np.array([[[0.1, 0.39, 0.9]]])
    labels = (expected[0] > 0.4).astype(int)
    assert compare_labels(labels, expected, expected, 'fp32', 0.4)['right']
    assert not compare_labels(1 - labels, expected, expected, 'fp32', 0.4)['right']
    # Errors count as those of logits, where a sigmoid is flat as well.
    rare = np.array([[[1e-3, 2e-3, 1e-2]]])
    for factor, right in ((1.01, True), (1.5, False)):
        found = compare_labels(np.zeros((1, 3)), rare * factor, rare, 'fp32')
        assert found['right'] is right


ROWS = [(0, 0, 10, 10, 0, 0.9), (0, 0, 10, 10, 1, 0.8), (20, 20, 40, 60, 0, 0.7)]


@pytest.mark.parametrize(
    ('change', 'matched'),
    [
        (lambda rows: rows, 3),
        (lambda rows: rows[::-1], 3),
        (lambda rows: rows[:2], 2),
        (lambda rows: [*rows, rows[0]], 3),  # one more than there is
        (lambda rows: [(*row[:4], 1, row[5]) for row in rows], 1),
        (lambda rows: [(*row[:5], row[5] + 0.002) for row in rows], 0),
        (lambda rows: [(row[0] + 1, *row[1:]) for row in rows], 0),  # overlap 0.82, 0.9
        (lambda rows: [], 0),
    ],
)
def test_objects_are_matched_one_to_one(change: object, matched: int) -> None:
    found = compare_objects(objects(*change(ROWS)), objects(*ROWS), 'fp32')
    assert found['matched'] == matched
    assert found['right'] == (matched == 3 and found['found'] == 3)


def test_in_half_precision_doubtful_objects_may_come_and_go() -> None:
    """But none that would be drawn."""
    doubtful, certain = (50, 50, 60, 60, 0, 0.2), (50, 50, 60, 60, 0, 0.4)
    for more in (doubtful, certain):
        for found, expected in (([*ROWS, more], ROWS), (ROWS, [*ROWS, more])):
            compared = compare_objects(objects(*found), objects(*expected), 'fp16')
            assert compared['right'] == (more is doubtful)
            assert not compare_objects(objects(*found), objects(*expected), 'fp32')['right']


@pytest.mark.parametrize(('pixels', 'right'), [(100, True), (96, True), (90, False), (0, False)])
def test_masks_are_compared(pixels: int, right: bool) -> None:
    expected, found = objects(ROWS[0]), objects(ROWS[0])
    expected.masks = np.ones((1, 10, 10), bool)
    found.masks = (np.arange(100) < pixels).reshape(1, 10, 10)
    compared = compare_objects(found, expected, 'fp32')
    assert compared['masks'] == pixels / 100
    assert compared['right'] == right
    found.masks = None
    assert not compare_objects(found, expected, 'fp32')['right']


def test_no_objects_prove_nothing() -> None:
    """Nor do doubtful ones in half precision."""
    assert compare_objects(objects(), objects(), 'fp32')['right'] is None
    doubtful = objects((50, 50, 60, 60, 0, 0.2))
    assert compare_objects(doubtful, doubtful, 'fp32')['right'] is True
    assert compare_objects(doubtful, doubtful, 'fp16')['right'] is None
    assert compare_objects(objects(), objects(ROWS[0]), 'fp32')['right'] is False


def test_errors_are_shares_of_how_far_a_channel_goes_from_its_mean() -> None:
    expected = np.array([[[7.0, 9.0], [-5.0, -5.0]]])  # channels from 7 to 9, and of -5
    assert error_of(expected, expected) == 0
    assert error_of(expected + 0.1, expected) == pytest.approx(0.1)
    assert np.isnan(error_of(expected * np.nan, expected))
    assert error_of(expected[..., :1], expected[..., :1]) is None
    assert error_of(expected[:0], expected[:0]) is None
