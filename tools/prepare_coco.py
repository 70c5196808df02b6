"""Fetch COCO 2017 (118,287 + 5,000 pictures with objects), unpack it for the configs, count it.

Examples:
    python tools/prepare_coco.py
    python tools/prepare_coco.py --root /disk/coco --zip train2017.zip val2017.zip --keep-zip

Run it again after an interruption: it goes on where it was. What is whole already is left alone.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from vit5_dense.datasets.prepare import Part, prepare, prepare_parser
from vit5_dense.errors import run_tool

PARTS = (
    Part(
        'http://images.cocodataset.org/annotations/annotations_trainval2017.zip',
        'annotations',
        {'instances_train2017.json': 1, 'instances_val2017.json': 1},
    ),
    Part('http://images.cocodataset.org/zips/val2017.zip', 'val2017', {'*.jpg': 5000}),
    Part('http://images.cocodataset.org/zips/train2017.zip', 'train2017', {'*.jpg': 118287}),
)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    return prepare_parser(__doc__, 'data/coco', PARTS).parse_args(argv)


def main(argv: Sequence[str] | None = None) -> list[Path]:
    """Prepare the set, unless it is there.

    Returns:
        The folders of annotations, validation and training pictures.
    """
    args = parse_args(argv)
    folders = prepare(PARTS, args.root, args.zip, args.url, args.keep_zip)
    print(f'data_root: {args.root}')
    return folders


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
