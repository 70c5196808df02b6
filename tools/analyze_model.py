"""Count parameters and multiply-adds of a model by part; needs no data set, weights or GPU.

Examples:
    python tools/analyze_model.py configs/upernet_vit5_b_ade20k.py --size 512 512
    python tools/analyze_model.py configs/mask_rcnn_vit5_s_coco.py --size 1024 1024

One multiply-add (MAC) is two floating point operations (FLOPs).
"""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from vit5_dense.backbones import ViT5
from vit5_dense.building import build_model
from vit5_dense.config import load_config, tool_parser
from vit5_dense.cost.operations import Inference, backbone_macs, count
from vit5_dense.cost.parts import PARTS
from vit5_dense.errors import UserError, run_tool
from vit5_dense.option_checks import within_memory

GIGA = 1e9


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = tool_parser(__doc__)
    parser.add_argument(
        '--size', nargs=2, type=int, default=[512, 512], metavar=('H', 'W'), help='of the picture'
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Count, and print a table.

    Returns:
        A row for each part and the total: ``name``, ``params``, ``macs``.
    """
    args = parse_args(argv)
    if min(args.size) < 1:
        raise UserError(f'--size {args.size} must be two numbers of pixels')
    cfg = load_config(args.config, args.cfg_options)
    model = build_model(cfg)
    with within_memory('--size {} {}'.format(*args.size)):
        analysis = count(Inference(model, cfg.default_scope), torch.zeros(1, 3, *args.size))
    macs, modules = analysis.by_module(), dict(model.named_modules())
    rows: list[dict[str, Any]] = [
        {
            'name': name,
            'params': sum(p.numel() for p in modules[name].parameters()),
            'macs': int(macs[f'model.{name}']),
        }
        for name in PARTS
        if name in modules
    ]
    total = sum(p.numel() for p in model.parameters())
    rows.append({'name': 'total', 'params': total, 'macs': int(analysis.total())})

    console = Console()
    table = Table(title=f'one picture of {args.size[0]} x {args.size[1]}')
    for column in ('', 'parameters (M)', 'GMACs', 'GFLOPs'):
        table.add_column(column, justify='right' if column else 'left')
    for row in rows:
        figures = (row['params'] / 1e6, row['macs'] / GIGA, 2 * row['macs'] / GIGA)
        table.add_row(row['name'], *(f'{x:.2f}' for x in figures))
    console.print(table)
    if isinstance(model.backbone, ViT5):
        formula = backbone_macs(model.backbone, *args.size)
        terms = ', '.join(f'{name} {value / GIGA:.2f}' for name, value in formula.items())
        console.print(f'backbone by formula: {sum(formula.values()) / GIGA:.2f} GMACs ({terms})')
    skipped = ', '.join(f'{name} x {n}' for name, n in sorted(analysis.unsupported_ops().items()))
    console.print(f'not counted: {skipped or "nothing"}')
    return rows


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
