"""Write an exported model in int8, smaller, and faster on most processors.

--dynamic takes ranges from each picture and changes the backbone's blocks alone; --static learns
them from pictures like those it will see (some dozens), and changes convolutions as well.

Examples:
    python tools/quantize.py model.onnx --out int8.onnx --static data/pictures
    python tools/quantize.py model.onnx --out int8.onnx --dynamic --config CONFIG
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.health import require_quantization
from vit5_dense.picture_files import find_pictures
from vit5_dense.runtime import Progress

SHOWN = ('ms', 'MB', 'mIoU', 'coco/bbox_mAP', 'coco/segm_mAP')


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('model', type=Path, help='file of tools/export.py in fp32')
    parser.add_argument('--out', type=Path, required=True, metavar='FILE', help='the new file')
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument('--static', nargs='+', metavar='PICTURES', help='files, folders or globs')
    way.add_argument('--dynamic', action='store_true', help='no pictures needed')
    parser.add_argument(
        '--max-pictures',
        type=int,
        default=64,
        metavar='N',
        help='with --static, evenly chosen (64)',
    )
    parser.add_argument(
        '--config', help='whose test set both files are scored on, as by tools/test.py'
    )
    return parser.parse_args(argv)


def comparison(before: dict[str, float], after: dict[str, float]) -> Table:
    """Speed, size and scores of a file and of its copy in int8.

    Args:
        before: ``ms`` a picture, ``MB`` and, after an evaluation, scores in the framework's names.
        after: The same of the copy.
    """
    table = Table('', 'original', 'int8', 'ratio')
    for name in (name for name in SHOWN if name in before):
        ratio = after[name] / before[name] if before[name] else float('nan')
        table.add_row(name, *(f'{value:.4g}' for value in (before[name], after[name], ratio)))
    return table


def main(argv: Sequence[str] | None = None) -> Path:
    """Quantise, try the result on a picture and compare speed, size and, with a config, scores.

    Returns:
        The new file.
    """
    args = parse_args(argv)
    if args.max_pictures < 1:
        raise UserError(f'--max-pictures {args.max_pictures} must be 1 or more')
    if args.out.suffix != '.onnx':
        raise UserError(f'--out {args.out} must end with .onnx')
    if args.out.exists() and args.model.exists() and args.out.samefile(args.model):
        raise UserError(f'--out {args.out} is the model itself: name another file')
    require_quantization()
    from vit5_dense.export.quantize import milliseconds, quantize, usable
    from vit5_dense.onnx_model import OnnxModel

    if args.config:
        from vit5_dense.config import load_config

        load_config(args.config)  # a wrong one is told before the work
    pictures = find_pictures(args.static) if args.static else []
    pictures = pictures[:: max(1, -(-len(pictures) // args.max_pictures))]
    model = OnnxModel(args.model)
    pictures, failed = usable(model, pictures)
    make_folder(args.out.parent)
    progress = Progress(len(pictures))
    number = quantize(args.model, args.out, pictures, progress.tick)
    for error in failed:
        print(f'left out: {error}', file=sys.stderr)
    print(f'{args.out}: {number} nodes in int8')
    files = (args.model, args.out)
    if args.config:
        from vit5_dense.exported import score

        rows = score(args.config, files)
    else:
        rows = [{'ms': milliseconds(OnnxModel(file), pictures)} for file in files]
    for row, file in zip(rows, files, strict=True):
        row['MB'] = file.stat().st_size / 2**20
    Console().print(comparison(*rows))
    if not args.config:
        print('mIoU or AP of both on a validation set: --config CONFIG')
    return args.out


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
