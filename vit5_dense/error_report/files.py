"""The files of an error report."""

import csv
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..picture_files import unique_names
from .collect import ErrorHook, percent
from .confusion import confusions
from .matrix_picture import draw_confusion
from .page import Page

NO_PICTURES = '--report shows pictures, and the test set has none'
TOLD = 10  # confusions of the whole set


def write_rows(path: Path, rows: Sequence[Sequence[object]]) -> None:
    """Write a CSV file; what is no UTF-8 in the name of a picture is escaped."""
    with path.open('w', newline='', encoding='utf-8', errors='backslashreplace') as file:
        csv.writer(file).writerows(rows)


def often_taken_for(matrix: np.ndarray, names: Sequence[str]) -> list[str]:
    """For each class what it is mostly taken for, with the share of its pixels or objects."""
    found = []
    for number, row in enumerate(matrix[:-1]):
        wrong = row.copy()
        wrong[number] = 0
        other = int(wrong.argmax())
        found.append(f'{names[other]} ({percent(wrong[other] / row.sum())})' if wrong.any() else '')
    return found


def picture_rows(errors: ErrorHook) -> list[list[object]]:
    """Name, path and figures of all pictures below their header, the worst first."""
    path, score, *others = errors.pictures[0]
    order = sorted(errors.pictures, key=lambda row: (np.isnan(row[score]), row[score]))
    rows: list[list[object]] = [['name', path, score, *others]]
    for row in order:
        figures = ['' if np.isnan(row[key]) else row[key] for key in (score, *others)]
        rows.append([Path(row[path]).stem, row[path], *figures])
    return rows


def make_page(
    errors: ErrorHook,
    facts: Mapping[str, str],
    scores: Mapping[str, float],
    table: Sequence[Mapping[str, Any]],
) -> Page:
    """All that the page shows; see ``write_report``."""
    worst = errors.worst()
    names = unique_names([Path(one.path) for one in worst])
    for one in worst:
        one.name = names[Path(one.path)]
    order, columns = errors.columns(table)
    columns['most often taken for'] = often_taken_for(errors.matrix, errors.names())
    return Page(
        title=f'Where {Path(facts["config"]).stem} errs',
        facts={
            **facts,
            'date': datetime.now().astimezone().strftime('%Y-%m-%d %H:%M %Z'),
            'pictures': str(len(errors.pictures)),
        },
        scores=errors.headline(scores),
        ranking=errors.ranking,
        worst=worst,
        rows={
            int(number): {name: column[number] for name, column in columns.items()}
            for number in np.argsort(order, kind='stable')  # NaN last
        },
        told=[(one, errors.say(one, errors.matrix)) for one in confusions(errors.matrix, TOLD)],
        names=errors.names(),
        palette=[*errors.palette, (255, 255, 255)],
    )


def write_report(
    errors: ErrorHook,
    out: Path,
    facts: Mapping[str, str],
    scores: Mapping[str, float],
    table: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write ``report.html``, ``confusion.png``, ``confusion.csv``, ``pictures.csv`` and sheets.

    The sheets are moved to ``out/worst``; those that an earlier report left there are removed.

    Args:
        errors: After the test.
        out: Folder that is there.
        facts: 'config', 'checkpoint' and more to say at the top.
        scores: All scores of the evaluation.
        table: For each class the figures of the metric, if it has such a table.

    Returns:
        The page.

    Raises:
        UserError: If no picture was tested.
    """
    if not errors.pictures:
        raise UserError(NO_PICTURES)
    page = make_page(errors, facts, scores, table)
    draw_confusion(out / 'confusion.png', errors.matrix, page.names)
    counts = errors.matrix.tolist()
    rows = [[name, *row] for name, row in zip(page.names, counts, strict=True)]
    write_rows(out / 'confusion.csv', [['true / predicted', *page.names], *rows])
    write_rows(out / 'pictures.csv', picture_rows(errors))
    for old in (out / 'worst').glob('*.png'):
        old.unlink()
    (out / 'worst').mkdir(exist_ok=True)
    for one in page.worst:
        one.sheet = Path(shutil.move(one.sheet, out / 'worst' / f'{one.name}.png'))
    path = out / 'report.html'
    html = page.html((out / 'confusion.png').read_bytes())
    path.write_text(html, encoding='utf-8', errors='backslashreplace')
    errors.sheets.cleanup()
    return path
