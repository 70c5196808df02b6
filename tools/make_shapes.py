"""Write the embedded demo scenes: pictures, label maps and instances that need no download.

Examples:
    python tools/make_shapes.py --out data/shapes
    python tools/make_shapes.py --out data/tiny --train 8 --val 4 --seed 7 --force

The set appears at once when it is complete; an interrupted run leaves nothing that looks like one.
"""

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

if __name__ == '__main__':
    # The scenes need numpy and Pillow only. Running the package's __init__ would import torch and
    # timm first, seconds even for a set that is there already: take the package without it.
    _SPEC = importlib.util.find_spec('vit5_dense')
    if _SPEC is None:
        sys.exit('vit5_dense is not installed; run "pip install -e ." in the repository')
    sys.modules['vit5_dense'] = importlib.util.module_from_spec(_SPEC)

from vit5_dense.datasets.shapes_folder import build_set
from vit5_dense.errors import run_tool


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool; a mistake in it ends the program with status 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--out', type=Path, required=True, help='folder of the set')
    parser.add_argument('--train', type=int, default=1000, help='training pictures (1000)')
    parser.add_argument('--val', type=int, default=100, help='validation pictures (100)')
    parser.add_argument('--seed', type=int, default=0, help='seed of the whole set (0)')
    parser.add_argument(
        '--workers',
        type=int,
        default=min(4, os.cpu_count() or 1),
        help='processes; the files do not depend on it',
    )
    parser.add_argument('--force', action='store_true', help='replace a different set of scenes')
    args = parser.parse_args(argv)
    for name, least in (('train', 1), ('val', 1), ('seed', 0), ('workers', 1)):
        if getattr(args, name) < least:
            parser.error(f'--{name} is {getattr(args, name)}, must be at least {least}')
    return args


def make_progress() -> Callable[[int, int], None]:
    """A line with the time left: rewritten in a terminal, at each quarter in a log."""
    start = time.monotonic()
    shown = [start]

    def show(done: int, total: int) -> None:
        now = time.monotonic()
        left = (now - start) / done * (total - done)
        line = f'{done}/{total} scenes, {left:.0f} s left'
        if not sys.stderr.isatty():
            if done * 4 // total > (done - 1) * 4 // total:
                print(line, file=sys.stderr)
        elif now - shown[0] > 0.2 or done == total:
            shown[0] = now
            print(f'\r{line}   ', end='\n' if done == total else '', file=sys.stderr, flush=True)

    return show


def main(argv: Sequence[str] | None = None) -> Path:
    """Write the set, unless it is there already.

    Returns:
        Its folder.
    """
    args = parse_args(argv)
    counts = {'train': args.train, 'val': args.val}
    start = time.monotonic()
    written = build_set(args.out, args.seed, counts, args.workers, args.force, make_progress())
    what = f'{args.out}: {args.train} + {args.val} scenes of seed {args.seed}'
    if written:
        print(f'{what}, written in {time.monotonic() - start:.1f} s')
    else:
        print(f'{what} are there already')
    return args.out


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
