"""Export a trained model to one ONNX file in standard operators, and check it against the model.

The file takes pictures as they are, uint8 (B, H, W, 3) in RGB: resizing, normalisation and padding
are inside. vit5_dense.runtime, tools/infer.py and tools/app.py run it.

Examples:
    python tools/export.py configs/upernet_vit5_b_ade20k.py model.pth --out model.onnx
    python tools/export.py CONFIG CHECKPOINT --out model.onnx --size 512x683 --fp16
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vit5_dense.checkpoint_io import resolve_checkpoint
from vit5_dense.config import load_config, reading, tool_parser
from vit5_dense.datasets.shapes import make_scene
from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.health import require_export
from vit5_dense.inference import load_predictor
from vit5_dense.option_checks import within_memory
from vit5_dense.pictures import read_picture


def parse_size(text: str) -> tuple[int, int]:
    """Height and width from ``HxW``."""
    match = re.fullmatch(r'(\d+)x(\d+)', text)
    if not match or not all(map(int, match.groups())):
        raise argparse.ArgumentTypeError(f'{text} is no size such as 512x683, height first')
    return int(match[1]), int(match[2])


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = tool_parser(__doc__)
    parser.add_argument('checkpoint', help='trained model')
    parser.add_argument('--out', required=True, metavar='FILE', help='such as model.onnx')
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        '--size',
        type=parse_size,
        metavar='HxW',
        help='of every picture, in batches of one: smaller graph, for compilers that need it',
    )
    sizes.add_argument(
        '--dynamic', action='store_true', help='leave batch, height and width free (default)'
    )
    parser.add_argument('--fp16', action='store_true', help='half the size; sums stay in fp32')
    parser.add_argument('--logits', action='store_true', help='segmentation: give these as well')
    parser.add_argument('--opset', type=int, default=18, help='of the standard operators (18)')
    parser.add_argument(
        '--picture', type=Path, help='to check the file with (default: one that is drawn)'
    )
    return parser.parse_args(argv)


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print what the check found."""
    table = Table(title='onnxruntime against the model')
    for name in rows[0]:
        table.add_column(name, justify='right')
    for row in rows:
        cells = [f'{v:.6g}' if isinstance(v, float) else str(v) for v in row.values()]
        table.add_row(*cells)
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """Export and check.

    Returns:
        0, or 1 if the file does not compute what the model does, or if that cannot be told.
    """
    args = parse_args(argv)
    if args.checkpoint.lower().endswith('.onnx'):
        raise UserError(f'{args.checkpoint} is an exported file already: name the checkpoint')
    require_export()
    from onnx.defs import onnx_opset_version

    from vit5_dense.export.check import SIZES, compare, resized
    from vit5_dense.export.whole import export, save

    newest = onnx_opset_version()
    if not 18 <= args.opset <= newest:
        raise UserError(f'--opset {args.opset} must be from 18 to {newest}, which onnx here knows')
    cfg = load_config(args.config, args.cfg_options)
    detects = cfg.get('default_scope') == 'mmdet'
    if detects and args.logits:
        raise UserError('--logits is for segmentation: a detector has none')
    out = Path(args.out)
    if out.suffix != '.onnx' or out.is_dir():
        raise UserError(f'--out {out} must name a file that ends in .onnx')
    make_folder(out.parent)
    picture = read_picture(args.picture) if args.picture else make_scene(0).image
    console = Console()
    with reading(args.config):
        if not detects and cfg.model.get('test_cfg', {}).get('mode') == 'slide':
            cfg.model.test_cfg = {'mode': 'whole'}
            console.print('note: the file looks at whole pictures, not at windows that slide')
        cfg.model.backbone.pop('compiled', None)
    predictor = load_predictor(cfg, resolve_checkpoint(args.checkpoint))
    asked = '--size {}x{}'.format(*args.size) if args.size else args.config
    with console.status('exporting (some minutes)'), within_memory(asked):
        model = export(predictor, args.size, args.logits, args.fp16, args.opset)
    save(model, out)
    del model
    with console.status('checking'), within_memory(asked):
        rows = compare(out, predictor, resized(picture, [args.size] if args.size else SIZES))
    show(rows, console)
    if any(row['right'] is False for row in rows):
        console.print(f'error: {out} does not compute what the model does; it is not to be used')
        return 1
    if not any(row['right'] for row in rows):
        console.print(
            f'error: {out} is not checked: nothing was seen that could be compared; name a picture '
            'with --picture'
        )
        return 1
    console.print(f'{out}: {out.stat().st_size / 2**20:.1f} MB, right')
    return 0


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
