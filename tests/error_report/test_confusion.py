import numpy as np
import pytest

from vit5_dense.error_report.confusion import (
    Confusion,
    confusions,
    count_objects,
    count_pixels,
    f1,
    ious,
    match_objects,
    mean_iou,
    pixel_accuracy,
    precisions,
    recalls,
)
from vit5_dense.instances import Instances

TRUTH = np.array([[0, 0, 1, 1], [0, 255, 1, 5]])  # 255 is ignored, 5 is no class
PREDICTED = np.array([[0, 1, 1, 1], [0, 0, 0, 1]])
MATRIX = np.array([[2, 1, 0], [1, 2, 0], [0, 1, 0]])


def objects(*rows: tuple[float, float, float, float, int, float]) -> Instances:
    """Objects from left, top, right, bottom, class and score."""
    table = np.reshape(rows, (-1, 6)).astype(float)
    return Instances(table[:, :4], table[:, 4].astype(int), table[:, 5])


def test_pixels_are_counted_by_true_and_predicted_class() -> None:
    assert count_pixels(TRUTH, PREDICTED, 2).tolist() == MATRIX.tolist()


def test_figures_of_two_classes_are_those_of_a_count_by_hand() -> None:
    """Class 0: 3 labelled, 3 predicted, 2 right; class 1: 3 labelled, 4 predicted, 2 right."""
    assert ious(MATRIX).tolist() == [2 / 4, 2 / 5]
    assert mean_iou(MATRIX) == pytest.approx(0.45)
    assert recalls(MATRIX).tolist() == [2 / 3, 2 / 3]
    assert precisions(MATRIX).tolist() == [2 / 3, 2 / 4]
    assert pixel_accuracy(MATRIX) == pytest.approx(4 / 6)


def test_another_label_can_be_the_ignored_one() -> None:
    counted = count_pixels(np.array([[0, 1, 255]]), np.array([[0, 1, 1]]), 2, ignored=0)
    assert counted.tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 0]]


def test_a_class_that_is_nowhere_has_no_figures_and_is_left_out_of_the_mean() -> None:
    matrix = count_pixels(np.array([[0, 0]]), np.array([[0, 2]]), 3)
    assert ious(matrix).tolist() == pytest.approx([0.5, np.nan, 0.0], nan_ok=True)
    assert mean_iou(matrix) == 0.25


def test_a_picture_of_ignored_pixels_has_no_figures() -> None:
    matrix = count_pixels(np.full((2, 2), 255), np.zeros((2, 2), int), 2)
    assert matrix.sum() == 0
    assert np.isnan(mean_iou(matrix))
    assert np.isnan(pixel_accuracy(matrix))


def test_the_mean_iou_is_that_of_mmsegmentation() -> None:
    torch = pytest.importorskip('torch')
    metric = pytest.importorskip('mmseg.evaluation').IoUMetric
    random = np.random.default_rng(0)
    matrix, areas = np.zeros((8, 8), int), []
    for _ in range(3):
        truth, predicted = random.integers(0, 9, (20, 30)), random.integers(0, 7, (20, 30))
        truth[truth == 8] = 255  # 7 is a label that no class has
        matrix += count_pixels(truth, predicted, 7)
        pair = torch.from_numpy(predicted), torch.from_numpy(truth)
        areas.append(metric.intersect_and_union(*pair, 7, 255))
    totals = (sum(column) for column in zip(*areas, strict=True))
    theirs = metric.total_area_to_metrics(*totals)
    assert ious(matrix) == pytest.approx(theirs['IoU'], abs=1e-6)
    assert recalls(matrix) == pytest.approx(theirs['Acc'], abs=1e-6)
    assert pixel_accuracy(matrix) == pytest.approx(float(theirs['aAcc']), abs=1e-6)


def test_the_largest_confusions_come_first() -> None:
    matrix = np.array([[9, 2, 0], [5, 9, 1], [0, 0, 0]])
    assert confusions(matrix, 2) == [Confusion(1, 0, 5), Confusion(0, 1, 2)]
    assert len(confusions(matrix, 9)) == 3, 'none without an error'


def test_objects_are_right_taken_for_others_missed_or_false() -> None:
    truth = objects((0, 0, 10, 10, 0, 1), (20, 0, 30, 10, 1, 1), (40, 0, 50, 10, 0, 1))
    found = objects(
        (0, 0, 10, 10, 0, 0.5),  # a second one at the first place
        (0, 0, 10, 9, 0, 0.9),  # which the more certain takes, though it fits less
        (20, 0, 30, 10, 0, 0.8),  # class 1 taken for 0
    )
    matches = match_objects(truth, found)
    assert matches == ([(0, 1)], [(1, 2)], [2], {0: 'twice'})
    matrix = count_objects(truth, found, matches, 2)
    assert matrix.tolist() == [[1, 0, 1], [1, 0, 0], [1, 0, 0]]
    assert f1(matrix) == pytest.approx(2 * 1 / (3 + 3))


def test_of_one_class_comes_before_a_larger_overlap_with_another() -> None:
    truth = objects((0, 0, 10, 10, 0, 1), (0, 0, 10, 8, 1, 1))
    matches = match_objects(truth, objects((0, 0, 10, 10, 1, 0.9)))
    assert matches == ([(1, 0)], [], [0], {})


def test_the_largest_overlap_decides_between_other_classes() -> None:
    truth = objects((0, 0, 10, 10, 0, 1))
    found = objects((0, 0, 10, 7, 1, 0.9), (0, 0, 10, 9, 1, 0.4))
    assert match_objects(truth, found) == ([], [(0, 1)], [], {0: 'false'})


@pytest.mark.parametrize(('bottom', 'right'), [(5.0, 1), (4.9, 0)])
def test_half_overlap_is_enough(bottom: float, right: int) -> None:
    matches = match_objects(objects((0, 0, 10, 10, 0, 1)), objects((0, 0, 10, bottom, 0, 0.9)))
    assert len(matches.right) == right
    assert len(matches.missed) == len(matches.alarms) == 1 - right


def test_what_is_found_in_a_crowd_of_its_class_does_not_count() -> None:
    truth, crowd = objects((0, 0, 10, 10, 1, 1)), objects((0, 0, 100, 100, 0, 1))
    found = objects(
        (1, 0, 10, 10, 0, 0.9),  # also on an object of another class
        (50, 50, 60, 60, 0, 0.8),
        (0, 0, 10, 40, 1, 0.7),  # no crowd of this class; a quarter of it is the object
        (95, 50, 115, 60, 0, 0.6),  # a quarter inside
    )
    assert match_objects(truth, found, crowd) == ([], [], [0], {2: 'misplaced', 3: 'false'})


def test_without_objects_there_is_nothing_to_count_and_f1_is_perfect() -> None:
    none, one = objects(), objects((0, 0, 10, 10, 1, 0.9))
    for truth, found, score in ((none, none, 1), (one, none, 0), (none, one, 0)):
        matches = match_objects(truth, found, none)
        matrix = count_objects(truth, found, matches, 2)
        assert matrix.sum() == max(len(truth), len(found))
        assert f1(matrix) == score
