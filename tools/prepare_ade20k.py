"""Fetch ADE20K's scene parsing set (20,210 + 2,000 pictures), unpack it for the configs, count it.

Examples:
    python tools/prepare_ade20k.py
    python tools/prepare_ade20k.py --root data/ade --zip ~/ADEChallengeData2016.zip

Run it again after an interruption: it goes on where it was. What is whole already is left alone.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from vit5_dense.datasets.prepare import Part, prepare, prepare_parser
from vit5_dense.errors import run_tool

PARTS = (
    Part(
        'http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip',
        'ADEChallengeData2016',
        {
            'images/training/*.jpg': 20210,
            'images/validation/*.jpg': 2000,
            'annotations/training/*.png': 20210,
            'annotations/validation/*.png': 2000,
        },
    ),
)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    return prepare_parser(__doc__, 'data/ade', PARTS).parse_args(argv)


def main(argv: Sequence[str] | None = None) -> list[Path]:
    """Prepare the set, unless it is there.

    Returns:
        Its folder, which configs name as ``data_root``.
    """
    args = parse_args(argv)
    folders = prepare(PARTS, args.root, args.zip, args.url, args.keep_zip)
    print(f'data_root: {folders[0]}')
    return folders


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
