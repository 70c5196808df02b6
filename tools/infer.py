"""Segment pictures: overlays with a legend and label maps.

Examples:
    python tools/infer.py configs/upernet_vit5_b_ade20k.py model.pth street.jpg --out results
    python tools/infer.py CONFIG CHECKPOINT pictures/ 'more/*.png' --out results --device cuda
"""

import argparse
import glob
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from mmengine.config import DictAction
from rich.progress import track

from vit5_dense.config import load_config
from vit5_dense.errors import UserError, run_tool
from vit5_dense.inference import Segmenter
from vit5_dense.pictures import SUFFIXES, PictureError, read_picture, save_result


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', help='config file, or package::name.py')
    parser.add_argument('checkpoint', help='trained model')
    parser.add_argument('pictures', nargs='+', help='files, folders or globs')
    parser.add_argument('--out', required=True, metavar='DIR', help='folder for the results')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--opacity', type=float, default=0.5, help='of the overlay, 0 to 1')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE')
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
            files = [path] if path.is_file() else [Path(p) for p in sorted(glob.glob(pattern))]
        if not files:
            raise UserError(f'{pattern} matches no picture ({", ".join(SUFFIXES)})')
        found.update(dict.fromkeys(files))
    return list(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Segment all pictures that can be read.

    Returns:
        0, or 1 if some picture could not be read; each is named on stderr.
    """
    args = parse_args(argv)
    if not 0 <= args.opacity <= 1:
        raise UserError(f'--opacity {args.opacity} must be between 0 and 1')
    files = find_pictures(args.pictures)
    segmenter = Segmenter(
        load_config(args.config, args.cfg_options), Path(args.checkpoint), args.device
    )
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    for path in track(files, description='segmenting'):
        try:
            picture = read_picture(path)
        except PictureError as error:
            failed.append(error)
            continue
        labels = segmenter(picture)
        name = path.stem if sum(f.stem == path.stem for f in files) == 1 else path.name
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
    print(f'{len(files) - len(failed)} of {len(files)} pictures segmented, results in {out}')
    for error in failed:
        print(f'error: {error}', file=sys.stderr)
    return 1 if failed else 0


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
