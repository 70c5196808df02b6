"""Write an exported model in int8, smaller, and faster on most processors.

--dynamic takes ranges from each picture and changes the backbone's blocks alone; --static learns
them from pictures like those it will see (some dozens), and changes convolutions as well.

Examples:
    python tools/quantize.py model.onnx --out int8.onnx --static data/pictures
    python tools/quantize.py model.onnx --out int8.onnx --dynamic
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.health import require_quantization
from vit5_dense.picture_files import find_pictures
from vit5_dense.runtime import Progress


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
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Path:
    """Quantise and try the result on a picture.

    Returns:
        The new file.
    """
    args = parse_args(argv)
    if args.max_pictures < 1:
        raise UserError(f'--max-pictures {args.max_pictures} must be 1 or more')
    if args.out.suffix != '.onnx':
        raise UserError(f'--out {args.out} must end with .onnx')
    if args.out.exists() and args.out.samefile(args.model):
        raise UserError(f'--out {args.out} is the model itself: name another file')
    require_quantization()
    from vit5_dense.export.quantize import quantize

    pictures = find_pictures(args.static) if args.static else []
    pictures = pictures[:: max(1, -(-len(pictures) // args.max_pictures))]
    make_folder(args.out.parent)
    progress = Progress(len(pictures))
    number = quantize(args.model, args.out, pictures, progress.tick)
    sizes = [path.stat().st_size / 2**20 for path in (args.model, args.out)]
    print(f'{args.out}: {number} nodes in int8, {sizes[1]:.1f} MB instead of {sizes[0]:.1f} MB')
    print(
        'measure what it costs before you use it: tools/infer.py with both files, or tools/test.py'
    )
    return args.out


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
