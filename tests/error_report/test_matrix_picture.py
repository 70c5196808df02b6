from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vit5_dense.error_report import matrix_picture
from vit5_dense.error_report.matrix_picture import draw_confusion, most_confused


def drawn(path: Path, matrix: np.ndarray, names: list[str], patch: pytest.MonkeyPatch) -> Any:
    """The axes of a matrix that was written to a file."""
    patch.setattr(matrix_picture.plt, 'close', lambda figure: None)
    draw_confusion(path, matrix, names)
    figure = matrix_picture.plt.gcf()
    patch.undo()
    matrix_picture.plt.close(figure)
    return figure.axes[0]


def test_cells_are_shares_of_the_true_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = np.array([[3, 1, 0], [0, 0, 0], [0, 0, 0]])
    axes = drawn(tmp_path / 'a.png', matrix, ['a', 'b', 'rest'], monkeypatch)
    assert [text.get_text() for text in axes.texts] == ['75', '25']
    assert [label.get_text() for label in axes.get_yticklabels()] == ['a', 'b']
    assert Image.open(tmp_path / 'a.png').size[0] < 800


def test_of_many_classes_the_most_confused_are_drawn_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = np.diag(np.full(151, 1000))
    matrix[100:140, 149] = 5  # 40 classes, all taken for one, which has the most errors
    matrix[100, 149] = 1
    names = [f'a class with a long name {i}' for i in range(150)] + ['rest']
    assert most_confused(matrix).tolist() == [*range(101, 140), 149]
    axes = drawn(tmp_path / 'a.png', matrix, names, monkeypatch)
    assert len(axes.get_xticklabels()) == 40
    assert 'the 40 of 150 classes with the most errors' in axes.get_title()
    assert max(Image.open(tmp_path / 'a.png').size) <= 1600


def test_the_background_is_kept_beside_the_most_confused_classes() -> None:
    matrix = np.diag(np.full(61, 9))
    matrix[3, 60] = 1
    assert most_confused(matrix, 2).tolist() == [0, 3, 60]


def test_a_name_is_no_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ['1 $ and 2 $', r'$\bad$', 'rest']
    draw_confusion(tmp_path / 'a.png', np.eye(3, dtype=int), names)
    assert (tmp_path / 'a.png').is_file()
