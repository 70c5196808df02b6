"""Check the data of a config before training: files, labels, classes, sizes, duplicates.

Examples:
    python tools/check_data.py configs/upernet_vit5_b_ade20k.py
    python tools/check_data.py configs/mask_rcnn_vit5_s_coco.py --split val --quick

Writes data.json, classes.png and samples.png. The exit code is 2 if training would go wrong.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from vit5_dense.building import check_data, require_framework
from vit5_dense.config import load_config, tool_parser
from vit5_dense.datasets.check import SPLITS, check
from vit5_dense.datasets.check_pictures import write_classes, write_samples
from vit5_dense.datasets.check_report import Found, Report
from vit5_dense.errors import make_folder, run_tool


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = tool_parser(__doc__)
    parser.add_argument(
        '--split',
        nargs='+',
        action='extend',
        default=[],
        choices=SPLITS,
        help='splits to check (all that the config has)',
    )
    parser.add_argument(
        '--quick',
        action='store_true',
        help='names, and some pictures, in about 3 seconds; draws nothing',
    )
    parser.add_argument(
        '--out', metavar='DIR', help='default: work_dirs/data_check/<name of the config>'
    )
    return parser.parse_args(argv)


def show_progress(results: Iterable[Found], what: str, total: int) -> Iterable[Found]:
    """A bar on stderr while pictures are opened."""
    return track(results, what, total=total, console=Console(stderr=True))


def pictures_table(report: Report) -> Table:
    """How many pictures each split has, and of which sizes."""
    table = Table('split', 'pictures', 'opened', title='pictures (width x height)')
    for name in ('min', 'median', 'max'):
        table.add_column(name)
    for split, part in report.parts.items():
        sizes = part.size_range()
        shown = ['{}x{}'.format(*sizes[name]) if sizes else '' for name in ('min', 'median', 'max')]
        table.add_row(split, str(part.pictures), str(len(part.sizes)), *shown)
    return table


def classes_table(report: Report) -> Table:
    """How often each class occurs in each split, and what is ignored."""
    parts = [part for part in report.parts.values() if part.classes]
    some = report.quick and any(part.unit == 'pixels' for part in parts)
    opened = ' of the opened pictures' if some else ''
    table = Table('class', title=f'classes{opened}')
    for part in parts:
        table.add_column(f'{part.split} {part.unit}', justify='right')
        table.add_column('share', justify='right')
    for field in ('classes', 'ignored'):
        names = dict.fromkeys(name for part in parts for name in getattr(part, field))
        for name in names:
            row = []
            for part in parts:
                number = getattr(part, field)[name]
                share = number / max(1, part.classes.total() + part.ignored.total())
                row += [f'{number}', f'{share:.2%}']
            table.add_row(escape(name.strip()), *row, style='dim' if field == 'ignored' else '')
        table.add_section()
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Check, and tell what was found.

    Returns:
        2 if there are errors, else 0.
    """
    args = parse_args(argv)
    cfg = load_config(args.config, args.cfg_options)
    require_framework(cfg)
    check_data(cfg, args.split or SPLITS)
    out = make_folder(args.out or Path('work_dirs', 'data_check', Path(args.config).stem))
    report = check(cfg, args.split, args.quick, show_progress)
    console = Console()
    console.print(pictures_table(report))
    if any(part.classes for part in report.parts.values()):
        console.print(classes_table(report))
    for note in report.notes:
        print(f'note: {note}')
    for line in report.lines('warning'):
        print(f'warning: {line}')
    for line in report.lines('error', first=5):
        print(f'error: {line}', file=sys.stderr)
    (out / 'data.json').write_text(json.dumps(report.as_json(), indent=1) + '\n')
    if not args.quick:
        write_classes(report, out / 'classes.png')
        write_samples(report, out / 'samples.png')
    errors, warnings = (len(report.of_level(level)) for level in ('error', 'warning'))
    print(f'{errors} errors, {warnings} warnings: {out / "data.json"}')
    return 2 if errors else 0


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
