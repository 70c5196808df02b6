"""Convert masks that show classes by colours to label PNGs that hold class numbers.

Examples:
    python tools/convert_masks.py masks/ --out data/mine/labels --colors colors.json
    python tools/convert_masks.py VOC2012/SegmentationClass --out labels --colors voc.json --indices

colors.json names the classes in the order of their numbers, and colours that become 255:
    {"road": [128, 64, 128], "roof": [220, 20, 60], "ignore": [[0, 0, 0]]}
Files appear when all masks are converted; classes.json beside them is a config's metainfo.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.progress import track

from vit5_dense.datasets.color_table import read_table
from vit5_dense.datasets.mask_colors import plan, read_mask, require_free
from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.pictures import save_labels


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        'masks', type=Path, metavar='MASKS_DIR', help='looked through with all below'
    )
    parser.add_argument('--out', type=Path, required=True, metavar='DIR', help='for the label PNGs')
    parser.add_argument(
        '--colors', type=Path, required=True, metavar='FILE.json', help='colour of each class'
    )
    parser.add_argument(
        '--indices', action='store_true', help="keep a palette's indices as class numbers"
    )
    parser.add_argument('--overwrite', action='store_true', help='replace files that are there')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> list[Path]:
    """Convert all masks, or none.

    Returns:
        The label files.
    """
    args = parse_args(argv)
    table = read_table(args.colors)
    masks = plan(args.masks, args.out)
    described = args.out / 'classes.json'
    if not args.overwrite:
        require_free([*masks.values(), described])
    out, lookup, transparent = make_folder(args.out), table.lookup(), []
    try:
        with TemporaryDirectory(prefix='.unfinished-', dir=out) as folder:
            moves = {}
            for mask, target in track(masks.items(), 'converting'):
                labels, is_transparent = read_mask(mask, table, lookup, args.indices)
                written = Path(folder, target.relative_to(args.out))
                written.parent.mkdir(parents=True, exist_ok=True)
                save_labels(written, labels, len(table.classes))
                moves[written] = target
                if is_transparent:
                    transparent.append(mask)
            metainfo = {'classes': table.classes, 'palette': table.palette}
            moves[Path(folder, described.name)] = described
            Path(folder, described.name).write_text(json.dumps(metainfo, indent=1) + '\n')
            for written, target in moves.items():
                target.parent.mkdir(parents=True, exist_ok=True)
                written.replace(target)
    except OSError as error:
        raise UserError(f'{error.filename or out} cannot be written: {error.strerror}') from error
    if transparent:
        print(
            f'alpha is ignored: {len(transparent)} masks have pixels that are not opaque, the '
            f'first is {transparent[0]}'
        )
    print(f'{len(masks)} label files, {len(table.classes)} classes: {described}')
    return list(masks.values())


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
