"""Show what a ViT-5 backbone sees: attention maps and principal components, block by block.

Examples:
    python tools/visualize.py configs/upernet_vit5_b_ade20k.py model.pth street.jpg --out seen
    python tools/visualize.py CONFIG CHECKPOINT pictures/ --out seen --blocks 0 11 --point 320 200
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np
import torch
from rich.progress import track

from vit5_dense.backbones.sizes import quarters, resolve_indices
from vit5_dense.checkpoint_io import resolve_checkpoint
from vit5_dense.config import check_device, load_config, tool_parser
from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.inference import Detector, Segmenter, load_predictor
from vit5_dense.instance_pictures import draw_instances
from vit5_dense.map_sheet import draw_sheet
from vit5_dense.maps import look_inside, model_view
from vit5_dense.picture_files import find_pictures, unique_names
from vit5_dense.pictures import PictureError, overlay, read_picture
from vit5_dense.seen import check_backbone


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = tool_parser(__doc__)
    parser.add_argument('checkpoint', help='trained model')
    parser.add_argument('pictures', nargs='+', help='files, folders or globs')
    parser.add_argument('--out', required=True, metavar='DIR', help='folder for the sheets')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument(
        '--blocks',
        nargs='+',
        type=int,
        metavar='N',
        help='rows of the sheet, from 0; -1 is the last (the last block of each quarter)',
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        '--patch',
        nargs=2,
        type=int,
        metavar=('ROW', 'COLUMN'),
        help='whose attention is shown, from 0 (the one in the centre)',
    )
    where.add_argument(
        '--point',
        nargs=2,
        type=int,
        metavar=('X', 'Y'),
        help='the same, named by a pixel of the picture file',
    )
    parser.add_argument(
        '--score-thr', type=float, default=0.3, help='objects less certain are not drawn, 0 to 1'
    )
    return parser.parse_args(argv)


def pick_patch(
    args: argparse.Namespace, name: object, file: np.ndarray, view: np.ndarray, patch_size: int
) -> tuple[int, int]:
    """Row and column of the patch that the command line names in a picture.

    Args:
        args: Of the command line.
        name: Of the picture, for messages.
        file: The picture in its own size, (H, W, 3).
        view: As the model saw it, (H', W', 3).
        patch_size: Side of a patch in pixels of the view.

    Raises:
        UserError: If it lies outside the picture.
    """
    height, width = file.shape[:2]
    rows, columns = (-(-side // patch_size) for side in view.shape[:2])
    if args.patch:
        row, column = args.patch
        if not (0 <= row < rows and 0 <= column < columns):
            raise UserError(
                f'--patch {row} {column} is outside {name}, which has {rows} rows and {columns} '
                f'columns of patches: name 0 0 to {rows - 1} {columns - 1}'
            )
        return row, column
    x, y = args.point or (width // 2, height // 2)
    if not (0 <= x < width and 0 <= y < height):
        raise UserError(
            f'--point {x} {y} is outside {name}, which has {width} x {height} pixels: name 0 0 to '
            f'{width - 1} {height - 1}'
        )
    # The middle of the pixel, in the size that the model saw.
    return (
        int((y + 0.5) * view.shape[0] / height) // patch_size,
        int((x + 0.5) * view.shape[1] / width) // patch_size,
    )


def draw_prediction(
    predictor: Segmenter | Detector, picture: np.ndarray, score: float
) -> np.ndarray:
    """What the model finds in an RGB picture, drawn over it."""
    found = predictor(picture)
    if isinstance(predictor, Segmenter):
        return overlay(picture, found, predictor.palette)
    return draw_instances(picture, found.above(score), predictor.classes, predictor.palette)


def main(argv: Sequence[str] | None = None) -> int:
    """Draw a sheet for every picture that can be read.

    Returns:
        0, or 1 if some picture could not be read; each is named on stderr.
    """
    args = parse_args(argv)
    if not 0 <= args.score_thr <= 1:
        raise UserError(f'--score-thr {args.score_thr} must be between 0 and 1')
    if args.checkpoint.lower().endswith('.onnx'):
        raise UserError(
            f'{args.checkpoint} is an exported file, whose inside cannot be seen: name the '
            'checkpoint'
        )
    cfg = load_config(args.config, args.cfg_options)
    names = unique_names(find_pictures(args.pictures))
    predictor = load_predictor(cfg, resolve_checkpoint(args.checkpoint), check_device(args.device))
    backbone = check_backbone(getattr(predictor.model, 'backbone', None))
    depth = len(backbone.blocks)
    evenly = quarters(depth) if depth >= 4 else range(depth)
    try:
        blocks = resolve_indices('--blocks', args.blocks or evenly, depth)
    except ValueError as error:
        raise UserError(str(error)) from error
    failed: list[PictureError] = []
    if args.patch or args.point:  # a picture that is too small stops the run before it begins
        for path in names:
            try:
                picture = read_picture(path)
            except PictureError:
                continue
            _, view = model_view(predictor, picture)
            pick_patch(args, path, picture, view, backbone.patch_size)
    out = make_folder(args.out)
    for path, name in track(names.items(), 'looking'):
        try:
            picture = read_picture(path)
        except PictureError as error:
            failed.append(error)
            continue
        inputs, view = model_view(predictor, picture)
        patch = pick_patch(args, path, picture, view, backbone.patch_size)
        seen = look_inside(backbone, inputs)
        drawn = draw_prediction(predictor, picture, args.score_thr)
        title = f'{path.name}, patch in row {patch[0]} and column {patch[1]}'
        draw_sheet(out / f'{name}.png', title, view, seen, patch, blocks, drawn)
    print(f'{len(names) - len(failed)} of {len(names)} pictures done, sheets in {out}')
    for error in failed:
        print(f'error: {error}', file=sys.stderr)
    return 1 if failed else 0


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
