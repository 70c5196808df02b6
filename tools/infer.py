"""Segment pictures or find objects in them: overlays, and label maps or a COCO result file.

With a config and its checkpoint, or with a file of tools/export.py alone, for which only
onnxruntime is needed (see python -m vit5_dense.runtime --help).

Examples:
    python tools/infer.py configs/upernet_vit5_b_ade20k.py model.pth street.jpg --out results
    python tools/infer.py CONFIG CHECKPOINT pictures/ 'more/*.png' --out results --score-thr 0.5
    python tools/infer.py CONFIG CHECKPOINT map.tif --out results --tile 1024 --overlap 128
    python tools/infer.py model.onnx pictures/ --out results
"""

import argparse
import sys
from collections.abc import Sequence

from vit5_dense import runtime
from vit5_dense.errors import UserError, run_tool
from vit5_dense.health import require_core
from vit5_dense.results import add_picture_options


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool for a config and a checkpoint."""
    import torch

    from vit5_dense.config import tool_parser

    parser = tool_parser(__doc__)
    parser.add_argument('checkpoint', help='trained model')
    add_picture_options(parser)
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument(
        '--tile',
        type=int,
        metavar='PIXELS',
        help='segment large pictures in tiles of this side. They are cut from the picture at its '
        'own resolution and skip the Resize of the test pipeline. A picture may have 2**31 pixels',
    )
    parser.add_argument(
        '--overlap',
        type=int,
        metavar='PIXELS',
        help='that tiles share; logits are blended there (an eighth of --tile)',
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Segment, or find objects in, all pictures that can be read.

    Returns:
        0, or 1 if some picture could not be read; each is named on stderr.
    """
    words = sys.argv[1:] if argv is None else argv
    files = [word for word in words if word.lower().endswith('.onnx')]
    if files:
        if words[0].endswith('.py'):
            raise UserError(f'{files[0]} holds all of the model: leave out {words[0]}')
        return runtime.main(words)
    require_core()  # not installed where exported models run
    args = parse_args(words)
    from vit5_dense.picture_run import run_trained

    return run_trained(args)


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
