"""Make a trained checkpoint fit to be shared: weights and class names only, hash in the name.

Examples:
    python tools/publish_checkpoint.py work_dirs/run/iter_160000.pth upernet_vit5_b_ade20k.pth
    python tools/publish_checkpoint.py work_dirs/demo/last_checkpoint published/demo.pth
"""

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from vit5_dense.backbones.lora import merge_lora
from vit5_dense.checkpoint_io import read_file, resolve_checkpoint, write_file
from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.hooks.plain_checkpoint import to_plain

KEPT_META = ('dataset_meta', 'vit5_dense', 'iter', 'epoch', 'experiment_name')


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('src', help='checkpoint of a training run')
    parser.add_argument('dst', help='NAME.pth; NAME-<first 8 digits of its sha256>.pth is written')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> str:
    """Strip optimiser, schedule and log, and name the file after its content, as OpenMMLab does.

    Adapters of a ``ViT5LoRA`` are merged: the file fits the same config with ``ViT5``.

    Returns:
        Path of the file written.
    """
    args = parse_args(argv)
    dst = Path(args.dst)
    if dst.suffix != '.pth':
        raise UserError(f'{dst} must end in .pth')
    src = resolve_checkpoint(args.src)
    content = read_file(src)
    state, found = content.get('state_dict'), content.get('meta') or {}
    if not isinstance(state, Mapping):
        raise UserError(f'{src} has no state_dict: it is no checkpoint of a training run')
    named = all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items())
    if not (state and named and isinstance(found, Mapping)):
        raise UserError(
            f'{src} is no checkpoint of a training run: its state_dict must have names and '
            'tensors, its meta settings by name'
        )
    meta = to_plain(dict(found))
    kept = {key: meta[key] for key in KEPT_META if key in meta}
    part = make_folder(dst.parent) / f'{dst.stem}.part.pth'
    write_file(part, merge_lora(state), kept)
    digest = hashlib.sha256(part.read_bytes()).hexdigest()
    final = part.replace(dst.with_name(f'{dst.stem}-{digest[:8]}.pth'))
    print(f'published: {final}')
    return str(final)


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
