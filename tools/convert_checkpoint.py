"""Turn any ViT-5 checkpoint into a bare file with the reference's names.

Examples:
    python tools/convert_checkpoint.py vit5_base_patch16_384.pth vit5_base.safetensors
    python tools/convert_checkpoint.py training.pth backbone.pth --no-ema --prefix backbone.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vit5_dense.checkpoint import Account
from vit5_dense.checkpoint_io import write_file
from vit5_dense.convert import DTYPES, convert_file
from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.option_checks import within_memory


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        'src', help='any ViT-5 file: bare, official training file, or trained by us'
    )
    parser.add_argument('dst', help='.safetensors or .pth file to write')
    parser.add_argument('--no-ema', action='store_true', help='take model where model_ema is there')
    parser.add_argument(
        '--to-img-size', type=int, metavar='N', help='resample pos_embed to N pixels'
    )
    parser.add_argument('--dtype', choices=DTYPES, help='default: as in the file')
    parser.add_argument('--prefix', default='', help='put before every name, such as backbone.')
    parser.add_argument('--force', action='store_true', help='overwrite an existing file')
    return parser.parse_args(argv)


def account_table(account: Account, meta: dict[str, str]) -> Table:
    """The account as a table: what became of how many tensors, with examples."""
    table = Table(title=', '.join(f'{key} {value}' for key, value in meta.items()))
    for column in ('fate', 'tensors', 'names'):
        table.add_column(column, overflow='fold')
    for fate in ('loaded', 'resized', 'left_out'):
        names = getattr(account, fate)
        more = f', ... ({len(names) - 3} more)' if len(names) > 3 else ''
        table.add_row(fate.replace('_', ' '), str(len(names)), ', '.join(names[:3]) + more)
    return table


def main(argv: Sequence[str] | None = None) -> Account:
    """Convert one file.

    Returns:
        The account of its keys.
    """
    args = parse_args(argv)
    dst = Path(args.dst)
    if dst.suffix not in ('.safetensors', '.pth'):
        raise UserError(f'{dst} must end in .safetensors or .pth')
    if os.path.exists(dst) and not args.force:  # Path.exists raises for a name that is too long
        raise UserError(f'{dst} exists: choose another name, or --force to overwrite it')
    with within_memory(f'{args.src} at --to-img-size {args.to_img_size}'):
        state, account, meta = convert_file(
            Path(args.src), not args.no_ema, args.to_img_size, args.dtype
        )
    make_folder(dst.parent)
    write_file(dst, {f'{args.prefix}{key}': value for key, value in state.items()}, meta)
    total = len(account.loaded) + len(account.resized)
    console = Console()
    console.print(account_table(account, meta))
    console.print(f'{total} of {total} tensors (100 %), {meta["weights"]}: {dst}')
    return account


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
