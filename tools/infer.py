"""Segment pictures: overlays with a legend and label maps.

Examples:
    python tools/infer.py configs/upernet_vit5_b_ade20k.py model.pth street.jpg --out results
    python tools/infer.py CONFIG CHECKPOINT pictures/ 'more/*.png' --out results --device cuda
"""

import argparse
import glob
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.progress import track

from vit5_dense.checkpoint_io import resolve_checkpoint
from vit5_dense.config import check_device, load_config, tool_parser
from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.inference import Segmenter
from vit5_dense.pictures import SUFFIXES, PictureError, read_picture, save_result


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = tool_parser(__doc__)
    parser.add_argument('checkpoint', help='trained model')
    parser.add_argument('pictures', nargs='+', help='files, folders or globs')
    parser.add_argument('--out', required=True, metavar='DIR', help='folder for the results')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--opacity', type=float, default=0.5, help='of the overlay, 0 to 1')
    return parser.parse_args(argv)


def find_pictures(patterns: Sequence[str]) -> list[Path]:
    """Files that paths, folders and globs name, each once, in order.

    Args:
        patterns: Files are taken as they are, folders for the picture files in them.

    Raises:
        UserError: If a pattern matches nothing.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
        else:
            files = [path] if path.is_file() else sorted(map(Path, glob.glob(pattern)))
            files = [file for file in files if file.is_file()]
        if not files:
            raise UserError(f'{pattern} matches no picture ({", ".join(SUFFIXES)})')
        found.update(dict.fromkeys(files))
    return list(found)


def unique_names(files: Sequence[Path]) -> dict[Path, str]:
    """A name for the results of each picture: its own, and parts of its path where need be."""
    names = {path: path.stem for path in files}
    for depth in range(1, 1 + max(len(path.parts) for path in files)):
        taken = Counter(names.values())
        if max(taken.values()) == 1:
            break
        names = {
            path: name
            if taken[name] == 1
            else '_'.join(path.relative_to(path.anchor).parts[-depth:])
            for path, name in names.items()
        }
    return names


def main(argv: Sequence[str] | None = None) -> int:
    """Segment all pictures that can be read.

    Returns:
        0, or 1 if some picture could not be read; each is named on stderr.
    """
    args = parse_args(argv)
    if not 0 <= args.opacity <= 1:
        raise UserError(f'--opacity {args.opacity} must be between 0 and 1')
    names = unique_names(find_pictures(args.pictures))
    out = make_folder(args.out)
    segmenter = Segmenter(
        load_config(args.config, args.cfg_options),
        resolve_checkpoint(args.checkpoint),
        check_device(args.device),
    )
    failed = []
    for path, name in track(names.items(), description='segmenting'):
        try:
            picture = read_picture(path)
        except PictureError as error:
            failed.append(error)
            continue
        labels = segmenter(picture)
        save_result(
            out,
            name,
            picture,
            labels,
            segmenter.classes,
            segmenter.palette,
            args.opacity,
            segmenter.label_offset,
        )
    print(f'{len(names) - len(failed)} of {len(names)} pictures segmented, results in {out}')
    for error in failed:
        print(f'error: {error}', file=sys.stderr)
    return 1 if failed else 0


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
