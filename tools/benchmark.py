"""Measure time and memory of backbones side by side, in one process, and of whole models by part.

Examples:
    python tools/benchmark.py compare --arch s --size 512 --batch 2 --reference ../ViT-5
    python tools/benchmark.py growth --arch s --sizes 256 512 768 1024 1536
    python tools/benchmark.py model configs/upernet_vit5_s_ade20k.py --size 512

Weights are random: time does not depend on them. A training step is forward and backward.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from vit5_dense.backbones.sizes import ARCHS
from vit5_dense.building import build_model
from vit5_dense.config import OptionsAction, check_device, load_config
from vit5_dense.cost.machine import describe_machine, sdpa_kernel
from vit5_dense.cost.measure import exponent, interleave, peak_memory, ratio
from vit5_dense.cost.parts import time_parts
from vit5_dense.cost.plots import plot_compare, plot_growth
from vit5_dense.cost.profile import time_operators
from vit5_dense.cost.subjects import FLOORS, OURS, PEERS, make_call, make_subject
from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.option_checks import within_memory

DTYPES = {'fp32': torch.float32, 'bf16': torch.bfloat16}
MB = 2**20
Row = dict[str, Any]


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument('--rounds', type=int, default=10, help='timed runs of each (10)')
    shared.add_argument('--warmup', type=int, default=2, help='runs before, not timed (2)')
    shared.add_argument('--threads', type=int, help='CPU threads (default: as torch chooses)')
    shared.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    shared.add_argument('--out', default='work_dirs/benchmark', help='folder for JSON and plots')
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest='command', required=True)

    compare = commands.add_parser('compare', parents=[shared], help='backbones of one size')
    compare.add_argument('--arch', choices=ARCHS, default='s')
    compare.add_argument('--size', type=int, default=512, help='side of the pictures (512)')
    compare.add_argument('--batch', type=int, default=2)
    compare.add_argument('--modes', nargs='+', choices=('infer', 'train'), default=['infer'])
    compare.add_argument('--dtypes', nargs='+', choices=DTYPES, default=['fp32'])
    compare.add_argument(
        '--subjects',
        nargs='+',
        metavar='NAME',
        help=f"{', '.join(map(repr, OURS))}, 'ours pyramid', each also with ' compiled' "
        "behind; {', '.join(map(repr, FLOORS))}, 'timm:NAME', 'mmseg:vit', 'mmseg:beit', "
        "'mmpretrain:NAME' (default: ours, floor and models of about the same size)",
    )
    compare.add_argument('--reference', type=Path, help='clone of the ViT-5 repository to add')

    growth = commands.add_parser('growth', parents=[shared], help='over sizes, with windows or not')
    growth.add_argument('--arch', choices=ARCHS, default='s')
    growth.add_argument('--sizes', nargs='+', type=int, default=[256, 512, 768, 1024, 1536])
    growth.add_argument('--batch', type=int, default=1)

    operators = commands.add_parser('operators', parents=[shared], help='backbones by operator')
    operators.add_argument('--arch', choices=ARCHS, default='s')
    operators.add_argument('--size', type=int, default=512, help='side of the pictures (512)')
    operators.add_argument('--batch', type=int, default=2)
    operators.add_argument('--mode', choices=('infer', 'train'), default='infer')
    operators.add_argument('--subjects', nargs='+', metavar='NAME', help='as in compare')

    model = commands.add_parser('model', parents=[shared], help='parts of a whole model')
    model.add_argument('config')
    model.add_argument('--cfg-options', nargs='+', action=OptionsAction, metavar='KEY=VALUE')
    model.add_argument('--size', type=int, default=512, help='side of the pictures (512)')
    return parser.parse_args(argv)


def measure(
    names: Sequence[str],
    args: argparse.Namespace,
    side: int,
    mode: str = 'infer',
    dtype: str = 'fp32',
    reference: Path | None = None,
) -> list[Row]:
    """Time and memory of some backbones on random pictures, the first against all others.

    Returns:
        For each a row of its name, the settings, seconds of all rounds, their median, pictures per
        second, peak bytes, and ``times``: how many times as long as the first it takes.
    """
    device = torch.device(args.device)
    pictures = torch.randn(args.batch, 3, side, side, device=device)
    calls = {}
    for name in names:
        compiled = name.endswith(' compiled')
        model = make_subject(name.removesuffix(' compiled'), args.arch, side, reference).to(device)
        training = mode == 'train'
        # The reference takes bf16 under autocast only; training keeps fp32 weights everywhere.
        autocast = dtype != 'fp32' and name not in FLOORS and (training or name == 'reference')
        if compiled:
            model.compile()
        calls[name] = make_call(model, pictures, DTYPES[dtype], training, autocast)
    with Progress() as progress:
        text = f'{side} px {mode} {dtype}'
        task = progress.add_task(text, total=len(names) * (args.rounds + args.warmup))
        done = lambda: progress.advance(task)  # noqa: E731
        times = interleave(calls, args.rounds, args.warmup, device, done)
    first = times[names[0]]
    rows = []
    for name in names:
        median = statistics.median(times[name])
        rows.append(
            {
                'name': name,
                'side': side,
                'batch': args.batch,
                'mode': mode,
                'dtype': dtype,
                'seconds': times[name],
                'median': median,
                'per_second': args.batch / median,
                'peak': peak_memory(calls[name], device),
                'times': ratio(times[name], first),
            }
        )
    return rows


def show(title: str, rows: Sequence[Row], console: Console) -> None:
    """Print rows as a table."""
    table = Table(title=title)
    columns = ('', 'ms', 'pictures/s', f'x {rows[0]["name"]}', 'peak MB')
    for column in columns:
        table.add_column(column, justify='right' if column else 'left')
    for row in rows:
        peak = '-' if row['peak'] is None else f'{row["peak"] / MB:.0f}'
        cells = (f'{1e3 * row["median"]:.1f}', f'{row["per_second"]:.2f}', f'{row["times"]:.3f}')
        table.add_row(row['name'], *cells, peak)
    console.print(table)


def compare(args: argparse.Namespace, out: Path, console: Console, rows: list[Row]) -> None:
    """Backbones of one size in every mode and type asked for."""
    names = args.subjects or ['ours', 'floor', *PEERS.get(args.arch, ())]
    if args.reference and 'reference' not in names:
        names.append('reference')
    for mode in args.modes:
        for dtype in args.dtypes:
            rows += measure(names, args, args.size, mode, dtype, args.reference)
            title = f'ViT-5 {args.arch}, {args.size} px, batch {args.batch}, {mode} {dtype}'
            show(title, rows[-len(names) :], console)
    plot_compare(rows, out / 'compare.png')


def growth(args: argparse.Namespace, out: Path, console: Console, rows: list[Row]) -> None:
    """Global and windowed attention over sizes of the picture."""
    names = ['ours', 'ours windowed']
    for side in args.sizes:
        rows += measure(names, args, side)
        show(f'ViT-5 {args.arch}, {side} px, batch {args.batch}', rows[-2:], console)
    for name in names:
        mine = [row for row in rows if row['name'] == name]
        pixels = [row['side'] ** 2 for row in mine]
        powers = [
            f'{label} ~ pixels^{exponent(pixels, [row[key] for row in mine]):.2f}'
            for key, label in (('median', 'time'), ('peak', 'memory'))
            if len(mine) > 1 and all(row[key] for row in mine)
        ]
        console.print(f'{name}: {", ".join(powers)}')
    plot_growth(rows, out / 'growth.png')


def operators(args: argparse.Namespace, out: Path, console: Console, rows: list[Row]) -> None:
    """What backbones spend their time on, in fp32."""
    device = torch.device(args.device)
    pictures = torch.randn(args.batch, 3, args.size, args.size, device=device)
    for name in args.subjects or ['ours', *PEERS.get(args.arch, ())[:1]]:
        model = make_subject(name, args.arch, args.size, None).to(device)
        call = make_call(model, pictures, torch.float32, args.mode == 'train', False)
        seconds = time_operators(call, args.rounds, args.warmup, device)
        rows.append({'name': name, 'mode': args.mode, 'seconds': seconds})
    table = Table(title=f'ViT-5 {args.arch}, {args.size} px, batch {args.batch}, {args.mode}: ms')
    table.add_column('')
    for row in rows:
        table.add_column(row['name'], justify='right')
    kinds = dict.fromkeys(kind for row in rows for kind in row['seconds'])
    for kind in kinds:
        table.add_row(kind, *(f'{1e3 * row["seconds"].get(kind, 0):.1f}' for row in rows))
    table.add_row('total', *(f'{1e3 * sum(row["seconds"].values()):.1f}' for row in rows))
    console.print(table)


def parts(args: argparse.Namespace, out: Path, console: Console, rows: list[Row]) -> None:
    """Where the time of a whole model goes."""
    cfg = load_config(args.config, args.cfg_options)
    model = build_model(cfg).to(args.device)
    rows += time_parts(model, cfg.default_scope, args.size, args.rounds, args.warmup)
    table = Table(title=f'{Path(args.config).stem}, {args.size} px, one picture')
    for column in ('', 'ms', 'share'):
        table.add_column(column, justify='right' if column else 'left')
    for row in rows:
        table.add_row(row['name'], f'{1e3 * row["median"]:.1f}', f'{row["share"]:.1%}')
    console.print(table)


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Measure, print tables, write JSON and a plot.

    Returns:
        Everything measured, a row each.
    """
    args = parse_args(argv)
    for name in ('rounds', 'batch', 'size', 'sizes', 'threads'):
        value = getattr(args, name, None)
        if value is not None and min(value if isinstance(value, list) else [value]) < 1:
            raise UserError(f'--{name} {value} must be 1 or more')
    if args.warmup < 0:
        raise UserError(f'--warmup {args.warmup} must be 0 or more')
    device = torch.device(check_device(args.device))
    if args.threads:
        torch.set_num_threads(args.threads)
    out = make_folder(args.out)
    console = Console()
    header = describe_machine(device)
    if args.command != 'model':
        heads = ARCHS[args.arch]['num_heads']
        width = ARCHS[args.arch]['embed_dims'] // heads
        for dtype in getattr(args, 'dtypes', ['fp32']):
            shape = (args.batch, heads, 1029, width)
            header[f'attention {dtype}'] = sdpa_kernel(shape, DTYPES[dtype], device)
    console.print(', '.join(f'{key}: {value}' for key, value in header.items()))
    commands = {'compare': compare, 'growth': growth, 'operators': operators, 'model': parts}
    command = commands[args.command]
    path, rows = out / f'{args.command}.json', []
    try:
        with within_memory('the picture size or batch'):
            command(args, out, console, rows)
    finally:  # what is measured is kept if the rest is interrupted
        path.write_text(json.dumps({'machine': header, 'rows': rows}, indent=1) + '\n')
        console.print(f'figures: {path}')
    return rows


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
