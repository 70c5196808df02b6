"""The page of an error report, one HTML file that needs no other."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from ..pictures import Palette
from .confusion import Confusion

EMBEDDED = 20  # with hundreds of them a browser takes minutes to open a page
PANELS = ('picture', 'truth', 'prediction', 'errors')
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1240px; margin: 2em auto;
  padding: 0 1em; }
h1 { font-size: 1.6em; } h2 { margin-top: 2em; border-bottom: 1px solid #ccc; }
h3 { margin: 1.6em 0 .3em; font-size: 1em; } h3 small { font-weight: normal; color: #666; }
table { border-collapse: collapse; } td, th { padding: .2em .7em; text-align: right; }
td:first-child, th:first-child { text-align: left; } th { border-bottom: 2px solid #888; }
tr:nth-child(even) td { background: #f4f4f4; }
.facts tr td { text-align: left; background: none; }
td { white-space: nowrap; } .facts td:last-child { white-space: normal; overflow-wrap: anywhere; }
.facts td:first-child { color: #666; }
.scores { display: flex; flex-wrap: wrap; gap: 1em; }
.scores b { display: block; font-size: 1.5em; }
.scores div { background: #f0f3f8; border-radius: 6px; padding: .5em 1em; }
.panels { display: grid; grid-template-columns: repeat(4, 1fr); text-align: center; color: #666; }
img { max-width: 100%; } .sheet { width: 100%; display: block; }
ul { margin: .3em 0; padding-left: 1.3em; }
i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; border: 1px solid #888; }
"""


@dataclass
class Worst:
    """A picture with the errors of a model.

    Attributes:
        name: Of its sheet, without suffix.
        path: Its file.
        score: What it was ranked by, in words.
        told: The largest confusions, each with words that hold ``{true}`` and ``{predicted}``.
        sheet: PNG of panels side by side.
    """

    name: str
    path: str
    score: str
    told: list[tuple[Confusion, str]]
    sheet: Path


@dataclass
class Page:
    """What is shown; it holds the sheets of the first ``EMBEDDED`` pictures and links to others.

    Attributes:
        title: Heading.
        facts: Of the run, such as config and date.
        scores: Headline figures, by name.
        ranking: How pictures are scored, and what colours mean, in words.
        worst: The worst pictures, the worst first.
        rows: Figures of each class, by name of the column; the key is the class number.
        told: The largest confusions of all, as in ``Worst``.
        names: Of the classes, and of what is none of them.
        palette: RGB colour of each of them.
    """

    title: str
    facts: Mapping[str, str]
    scores: Mapping[str, str]
    ranking: str
    worst: Sequence[Worst]
    rows: Mapping[int, Mapping[str, str]]
    told: Sequence[tuple[Confusion, str]]
    names: Sequence[str]
    palette: Palette

    def label(self, number: int) -> str:
        """HTML of a class: its colour and name."""
        red, green, blue = self.palette[number]
        swatch = f'<i style="background: rgb({red}, {green}, {blue})"></i>'
        return swatch + escape(self.names[number])

    def confusions(self, told: Sequence[tuple[Confusion, str]]) -> str:
        """HTML of a list of confusions."""
        lines = [
            words.format(true=self.label(one.true), predicted=self.label(one.predicted))
            for one, words in told
        ]
        return '<ul>' + ''.join(f'<li>{line}</li>' for line in lines) + '</ul>'

    def html(self, confusion: bytes) -> str:
        """The page.

        Args:
            confusion: PNG of the matrix.
        """
        facts = [[escape(name), escape(value)] for name, value in self.facts.items()]
        scores = [f'<div>{escape(n)}<b>{escape(v)}</b></div>' for n, v in self.scores.items()]
        columns = list(next(iter(self.rows.values()), {}))
        classes = [
            [self.label(number), *(escape(row[column]) for column in columns)]
            for number, row in self.rows.items()
        ]
        header = '<div class="panels">' + ''.join(f'<div>{n}</div>' for n in PANELS) + '</div>'
        parts = [
            f'<h1>{escape(self.title)}</h1>',
            '<div class="facts">' + table([], facts) + '</div>',
            '<h2>Scores</h2><div class="scores">' + ''.join(scores) + '</div>',
            f'<h2>The worst pictures</h2><p>{escape(self.ranking)}</p>',
        ]
        for place, one in enumerate(self.worst, 1):
            parts += [
                f'<h3>{place}. {escape(one.name)}: {escape(one.score)} '
                f'<small>{escape(one.path)}</small></h3>{header}',
                f'<img class="sheet" loading="lazy" alt="{escape(one.name)}" '
                f'src="{embedded(one.sheet) if place <= EMBEDDED else linked(one.sheet)}">',
                self.confusions(one.told),
            ]
        parts += [
            '<h2>Classes, the worst first</h2>' + table(['class', *columns], classes),
            '<h2>Largest confusions of the whole set</h2>' + self.confusions(self.told),
            '<h2>Confusion matrix</h2>',
            f'<img src="data:image/png;base64,{base64.b64encode(confusion).decode()}" '
            'alt="confusion matrix">',
        ]
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<title>{escape(self.title)}</title>\n<style>{STYLE}</style></head>\n<body>\n'
            + '\n'.join(parts)
            + '\n</body></html>\n'
        )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """HTML of a table; cells are HTML."""
    lines = ['<tr>' + ''.join(f'<th>{cell}</th>' for cell in header) + '</tr>'] if header else []
    lines += ['<tr>' + ''.join(f'<td>{cell}</td>' for cell in row) + '</tr>' for row in rows]
    return '<table>' + '\n'.join(lines) + '</table>'


def linked(path: Path) -> str:
    """Address of a picture in a folder beside the page."""
    return quote(f'{path.parent.name}/{path.name}', errors='surrogateescape')


def embedded(path: Path) -> str:
    """Address that holds an RGB picture itself, as JPEG."""
    file = io.BytesIO()
    with Image.open(path) as picture:
        picture.save(file, 'JPEG', quality=88, subsampling=0)  # 0: red stays sharp
    return 'data:image/jpeg;base64,' + base64.b64encode(file.getvalue()).decode()
