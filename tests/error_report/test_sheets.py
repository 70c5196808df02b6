import numpy as np

from vit5_dense.error_report.confusion import match_objects
from vit5_dense.error_report.sheets import (
    ALARM,
    GAP,
    MISSED,
    RIGHT,
    WRONG,
    object_sheet,
    panel_size,
    pixel_sheet,
)
from vit5_dense.instances import Instances

PALETTE = [(200, 0, 0), (0, 0, 200)]


def panels(sheet: np.ndarray) -> list[np.ndarray]:
    """The four panels of a sheet."""
    width = (sheet.shape[1] - 3 * GAP) // 4
    return [sheet[:, i * (width + GAP) :][:, :width] for i in range(4)]


def test_panels_are_bounded_and_small_pictures_are_enlarged() -> None:
    assert panel_size(4000, 2000) == (480, 240)
    assert panel_size(20, 30) == (60, 90)
    assert panel_size(1, 100000) == (1, 480)


def test_wrong_pixels_are_red_right_ones_gray_and_ignored_ones_black() -> None:
    picture = np.full((2, 3, 3), (10, 20, 30), np.uint8)
    truth, predicted = np.array([[0, 1, 255], [0, 1, 7]]), np.array([[0, 0, 0], [0, 1, 1]])
    shown, labelled, found, errors = panels(pixel_sheet(picture, truth, predicted, PALETTE))
    assert errors.shape == (6, 9, 3), 'three times as large'
    assert (shown == (10, 20, 30)).all()
    assert (labelled[:3, 6:] == (10, 20, 30)).all(), 'ignored: as in the picture'
    assert (labelled[:3, :3] == labelled[0, 0]).all()
    assert labelled[0, 0, 0] > labelled[0, 0, 2], 'class 0 is red'
    assert found[0, 4].tolist() == labelled[0, 0].tolist(), 'class 0 predicted'
    gray = errors[0, 0]
    assert len(set(gray.tolist())) == 1
    assert 100 < gray[0] < 200
    assert (errors[:3, 3:6] == MISSED).all()
    assert (errors[:3, 6:] == 0).all()
    assert (errors[3:, :6] == gray).all()
    assert (errors[3:, 6:] == MISSED).all(), 'a label that no class has'


def test_masks_and_boxes_of_the_errors_have_the_colour_of_their_kind() -> None:
    def at(*lefts: int, labels: list[int], scores: list[float] | None = None) -> Instances:
        boxes = np.array([(left, 10, left + 20, 30) for left in lefts], float)
        masks = np.zeros((len(lefts), 40, 160), bool)
        for mask, left in zip(masks, lefts, strict=True):
            mask[12:28, left : left + 20] = True
        return Instances(boxes, np.array(labels), scores and np.array(scores), masks)

    picture = np.zeros((40, 160, 3), np.uint8)
    truth = at(0, 40, 80, labels=[0, 0, 1])
    found = at(0, 80, 120, labels=[0, 0, 0], scores=[0.9, 0.8, 0.7])
    matches = match_objects(truth, found)
    sheet = object_sheet(picture, (40, 160), truth, found, matches, ['ball', 'box'], PALETTE)
    _, labelled, predicted, errors = panels(sheet)
    assert errors.shape == (120, 480, 3)
    for left, color in ((0, RIGHT), (40, MISSED), (80, WRONG), (120, ALARM)):
        assert (errors[60:85, 3 * left] == color).all(), 'left edge of the box'
        inside = errors[75, 3 * left + 30].astype(int) - errors[100, 3 * left + 30]
        assert inside.argmax() == np.argmax(color), 'the mask leans to the colour'
    assert (labelled[60:85, 240] == PALETTE[1]).all()
    assert (predicted[60:85, 240] == PALETTE[0]).all()
    assert not (predicted[60:85, 120] != 0).any(), 'missed'


def test_a_picture_without_objects_and_without_masks_is_drawn() -> None:
    picture = np.zeros((40, 60, 3), np.uint8)
    none = Instances(np.zeros((0, 4)), np.zeros(0, int), np.zeros(0))
    sheet = object_sheet(picture, (20, 30), none, none, match_objects(none, none), ['a'], PALETTE)
    assert [panel.shape for panel in panels(sheet)] == [(60, 90, 3)] * 4
