"""Run an exported model over pictures with onnxruntime alone: no torch, no OpenMMLab.

It writes overlays, and label maps or a COCO result file, as tools/infer.py does.

Examples:
    python -m vit5_dense.runtime model.onnx street.jpg --out results
    python -m vit5_dense.runtime model.onnx pictures/ 'more/*.png' --out results --batch 4
"""

import argparse
import sys
import time
from collections.abc import Sequence

from .errors import UserError, make_folder, run_tool
from .large_pictures import read_head
from .onnx_model import Found, OnnxModel
from .picture_files import find_pictures, unique_names
from .prefetch import runs
from .results import Loaded, Results, add_picture_options, check_picture_options, tell_deep

__all__ = ['OnnxModel', 'main', 'parse_args']

# Options of tools/infer.py that an exported file has no use for, and what takes their place.
UNFIT = {
    '--tile': 'tiles need the config and the checkpoint',
    '--overlap': 'tiles need the config and the checkpoint',
    '--cfg-options': 'its settings are inside, export it again with others',
    '--device': 'choose with --providers CUDA or --providers CPU',
}


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """Command line of this tool.

    Raises:
        UserError: If it has an option that is for a config and its checkpoint.
    """
    for word in argv:
        option = word.partition('=')[0]
        if option in UNFIT:
            raise UserError(f'{option} is not for an exported model: {UNFIT[option]}')
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('model', help='file of tools/export.py')
    add_picture_options(parser)
    parser.add_argument(
        '--providers',
        nargs='+',
        metavar='NAME',
        help="onnxruntime's, the preferred first (CUDA where there is one, and CPU)",
    )
    parser.add_argument(
        '--threads', type=int, metavar='N', help="of the CPU (onnxruntime's choice)"
    )
    return parser.parse_args(argv)


class Progress:
    """Pictures done, rate and time left on stderr: one line on a screen, else one a minute.

    Args:
        total: Number of pictures.
    """

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.begin = self.told = time.monotonic()

    def line(self) -> str:
        """Such as ``12 of 100 pictures, 3.4 per second, 26 s left``."""
        rate = self.done / max(time.monotonic() - self.begin, 1e-9)
        left = f', {(self.total - self.done) / rate:.0f} s left' if self.done else ''
        return f'{self.done} of {self.total} pictures, {rate:.3g} per second{left}'

    def tick(self) -> None:
        """Count a picture."""
        self.done += 1
        screen = sys.stderr.isatty()
        if self.done < self.total and time.monotonic() - self.told < (0.2 if screen else 60):
            return
        self.told = time.monotonic()
        end = '\n' if self.done == self.total or not screen else ''
        start = '\r\x1b[K' if screen else ''  # over the line before
        print(f'{start}{self.line()}', end=end, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Segment, or find objects in, all pictures that can be read.

    Returns:
        0, or 1 if some picture could not be read or the model fails on it; each is named on stderr.
    """
    args = parse_args(sys.argv[1:] if argv is None else argv)
    check_picture_options(args)
    if args.threads is not None and args.threads < 1:
        raise UserError(f'--threads {args.threads} must be 1 or more')
    model = OnnxModel(args.model, args.providers, args.threads)
    names = unique_names(find_pictures(args.pictures))
    make_folder(args.out)
    if model.task == 'segmentation':
        tell_deep({path: head for path in names if (head := read_head(path))})

    def find(batch: Sequence[Loaded]) -> list[Found]:
        return model.batch([one.picture for one in batch])

    progress = Progress(len(names))
    results = Results(names, model.meaning, args, lambda path: progress.tick())
    pictures = results.load(model.check, 2 * args.batch)
    for batch in runs(pictures, lambda one: one.picture.shape, args.batch):
        for one, found, seconds in results.look(batch, find):
            results.save(one, found, seconds)
            progress.tick()
    return results.finish()


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
