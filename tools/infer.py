"""Segment pictures or find objects in them: overlays, and label maps or a COCO result file.

Examples:
    python tools/infer.py configs/upernet_vit5_b_ade20k.py model.pth street.jpg --out results
    python tools/infer.py CONFIG CHECKPOINT pictures/ 'more/*.png' --out results --score-thr 0.5
"""

import argparse
import glob
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.progress import track

from vit5_dense.checkpoint_io import resolve_checkpoint
from vit5_dense.config import check_device, load_config, tool_parser
from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.inference import Detector, Segmenter, load_predictor
from vit5_dense.instance_pictures import draw_instances
from vit5_dense.instances import coco_results
from vit5_dense.pictures import SUFFIXES, PictureError, read_picture, save_picture, save_result
from vit5_dense.prefetch import prefetch, runs


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = tool_parser(__doc__)
    parser.add_argument('checkpoint', help='trained model')
    parser.add_argument('pictures', nargs='+', help='files, folders or globs')
    parser.add_argument('--out', required=True, metavar='DIR', help='folder for the results')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument(
        '--batch', type=int, default=1, help='pictures of one size that are run together (1)'
    )
    parser.add_argument('--opacity', type=float, default=0.5, help='of the overlay, 0 to 1')
    parser.add_argument(
        '--score-thr', type=float, default=0.3, help='objects less certain are not drawn, 0 to 1'
    )
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


def image_id(path: Path, number: int) -> int:
    """COCO's id of a picture: the digits that are its name, else its number in the run."""
    return int(path.stem) if path.stem.isdecimal() else number


class Loaded(NamedTuple):
    """A picture from a file, and what the model takes of it."""

    path: Path
    picture: np.ndarray
    item: dict[str, Any]

    def size(self) -> tuple[int, ...]:
        """Shape that the model sees."""
        return tuple(self.item['inputs'].shape)


def main(argv: Sequence[str] | None = None) -> int:
    """Segment, or find objects in, all pictures that can be read.

    Returns:
        0, or 1 if some picture could not be read; each is named on stderr.
    """
    args = parse_args(argv)
    if args.batch < 1:
        raise UserError(f'--batch {args.batch} must be 1 or more')
    for name in ('opacity', 'score_thr'):
        if not 0 <= getattr(args, name) <= 1:
            option = f'--{name.replace("_", "-")}'
            raise UserError(f'{option} {getattr(args, name)} must be between 0 and 1')
    names = unique_names(find_pictures(args.pictures))
    out = make_folder(args.out)
    predictor = load_predictor(
        load_config(args.config, args.cfg_options),
        resolve_checkpoint(args.checkpoint),
        check_device(args.device),
    )
    failed: list[PictureError] = []
    objects: list[dict[str, Any]] = []
    shown = (predictor.classes, predictor.palette, args.opacity)

    def load(path: Path) -> Loaded | PictureError:
        try:
            picture = read_picture(path)
        except PictureError as error:
            return error
        return Loaded(path, picture, predictor.prepare(picture))

    def save(loaded: Loaded, found: Any) -> None:
        path, picture, name = loaded.path, loaded.picture, names[loaded.path]
        if isinstance(predictor, Segmenter):
            save_result(out, name, picture, found, *shown, predictor.label_offset)
            return
        drawn = draw_instances(picture, found.above(args.score_thr), *shown)
        save_picture(out / 'overlays' / f'{name}.png', drawn)
        entries = coco_results(found, image_id(path, numbers[path]), predictor.category_ids)
        objects.extend({'file_name': path.name, **entry} for entry in entries)

    def readable(loaded: Iterable[Loaded | PictureError]) -> Iterator[Loaded]:
        for one in loaded:
            if isinstance(one, PictureError):
                failed.append(one)
            else:
                yield one

    numbers = {path: number for number, path in enumerate(names, 1)}
    begin, busy = time.perf_counter(), 0.0
    loaded = track(prefetch(load, names, 2 * args.batch), 'looking', total=len(names))
    for batch in runs(readable(loaded), Loaded.size, args.batch):
        start = time.perf_counter()
        results = predictor.predict([one.item for one in batch])
        busy += time.perf_counter() - start
        for one, found in zip(batch, results, strict=True):
            save(one, found)
    seconds = time.perf_counter() - begin
    if isinstance(predictor, Detector):
        (out / 'results.json').write_text(json.dumps(objects))
    done = len(names) - len(failed)
    print(f'{done} of {len(names)} pictures done, results in {out}')
    if done:
        print(f'{done / seconds:.2f} pictures per second, the model alone {done / busy:.2f}')
    for error in failed:
        print(f'error: {error}', file=sys.stderr)
    return 1 if failed else 0


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
