"""Segment pictures or find objects in them: overlays, and label maps or a COCO result file.

Examples:
    python tools/infer.py configs/upernet_vit5_b_ade20k.py model.pth street.jpg --out results
    python tools/infer.py CONFIG CHECKPOINT pictures/ 'more/*.png' --out results --score-thr 0.5
    python tools/infer.py CONFIG CHECKPOINT map.tif --out results --tile 1024 --overlap 128
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.progress import Progress

from vit5_dense.checkpoint_io import resolve_checkpoint
from vit5_dense.config import check_device, load_config, reading, tool_parser
from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.inference import Detector, Segmenter, load_predictor
from vit5_dense.instance_pictures import draw_instances
from vit5_dense.instances import coco_results
from vit5_dense.large_pictures import check_memory, pixel_limit, read_head
from vit5_dense.picture_files import find_pictures, image_id, unique_names
from vit5_dense.pictures import PictureError, read_picture, save_picture, save_result
from vit5_dense.prefetch import prefetch, runs
from vit5_dense.tiling import check_tiles, count_tiles, for_tiles, segment


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = tool_parser(__doc__)
    parser.add_argument('checkpoint', help='trained model')
    parser.add_argument('pictures', nargs='+', help='files, folders or globs')
    parser.add_argument('--out', required=True, metavar='DIR', help='folder for the results')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument(
        '--batch', type=int, default=1, help='pictures of one size, or tiles, run together (1)'
    )
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
    parser.add_argument('--opacity', type=float, default=0.5, help='of the overlay, 0 to 1')
    parser.add_argument(
        '--score-thr', type=float, default=0.3, help='objects less certain are not drawn, 0 to 1'
    )
    return parser.parse_args(argv)


class Loaded(NamedTuple):
    """A picture from a file, and what the model takes of it; nothing if it takes tiles."""

    path: Path
    picture: np.ndarray
    item: dict[str, Any]

    def size(self) -> tuple[int, ...]:
        """Shape that the model sees."""
        return tuple(self.item['inputs'].shape)


def look(
    predictor: Segmenter | Detector,
    pictures: Iterable[Loaded],
    args: argparse.Namespace,
    tick: Callable[[int], None],
) -> Iterator[tuple[Loaded, Any, float]]:
    """Each picture with what is found in it and the seconds that took.

    Args:
        predictor: The model.
        pictures: In any sizes.
        args: Of the command line.
        tick: Called with the number of pictures, or of tiles, done.
    """
    if isinstance(predictor, Segmenter) and args.tile:
        for one in pictures:
            start = time.perf_counter()
            found = segment(predictor, one.picture, args.tile, args.overlap, args.batch, tick)
            yield one, found, time.perf_counter() - start
        return
    for batch in runs(pictures, Loaded.size, args.batch):
        start = time.perf_counter()
        results = predictor.predict([one.item for one in batch])
        seconds = (time.perf_counter() - start) / len(batch)
        for one, found in zip(batch, results, strict=True):
            yield one, found, seconds
            tick(1)


def find_all(
    predictor: Segmenter | Detector, names: dict[Path, str], out: Path, args: argparse.Namespace
) -> int:
    """Write the results for all pictures; see ``main``."""
    numbers = {path: number for number, path in enumerate(names, 1)}
    steps = dict.fromkeys(names, 1)  # of the progress
    if isinstance(predictor, Segmenter):
        heads = {path: head for path in names if (head := read_head(path))}
        check_memory(heads, len(predictor.classes), args.device, args.tile, args.batch)
        deep = [str(path) for path, head in heads.items() if head.deep]
        if deep:
            which = f'{deep[0]} and {len(deep) - 1} more'
            print(f'note: 16 bits are divided by 256 in {which}; if dark, write 8 bits first')
        if args.tile:
            cut = (args.tile, args.overlap)
            steps.update({path: count_tiles(head[:2], *cut) for path, head in heads.items()})
    failed: list[PictureError] = []
    objects: list[dict[str, Any]] = []
    shown = (predictor.classes, predictor.palette, args.opacity)

    def load(path: Path) -> Loaded | PictureError:
        try:
            picture = read_picture(path)
        except PictureError as error:
            return error
        return Loaded(path, picture, {} if args.tile else predictor.prepare(picture))

    def save(loaded: Loaded, found: Any) -> None:
        path, picture, name = loaded.path, loaded.picture, names[loaded.path]
        if isinstance(predictor, Segmenter):
            save_result(out, name, picture, found, *shown, predictor.label_offset)
            return
        drawn = draw_instances(picture, found.above(args.score_thr), *shown)
        save_picture(out / 'overlays' / f'{name}.png', drawn)
        entries = coco_results(found, image_id(path, numbers[path]), predictor.category_ids)
        objects.extend({'file_name': path.name, **entry} for entry in entries)

    begin, busy = time.perf_counter(), 0.0
    # Tiles may take half a minute each: time left is estimated from the last ten minutes.
    with Progress(speed_estimate_period=600) as progress:
        task = progress.add_task('looking', total=sum(steps.values()))
        tick = partial(progress.advance, task)

        def readable() -> Iterator[Loaded]:
            ahead = 1 if args.tile else 2 * args.batch
            for path, one in zip(names, prefetch(load, names, ahead), strict=True):
                if isinstance(one, Loaded):
                    yield one
                else:
                    failed.append(one)
                    tick(steps[path])

        for one, found, seconds in look(predictor, readable(), args, tick):
            busy += seconds
            save(one, found)
    seconds = time.perf_counter() - begin
    if isinstance(predictor, Detector):
        (out / 'results.json').write_text(json.dumps(objects))
    done = len(names) - len(failed)
    print(f'{done} of {len(names)} pictures done, results in {out}')
    if done:
        print(f'{done / seconds:.3g} pictures per second, the model alone {done / busy:.3g}')
    for error in failed:
        print(f'error: {error}', file=sys.stderr)
    return 1 if failed else 0


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
    args.overlap = check_tiles(args.tile, args.overlap)
    cfg = load_config(args.config, args.cfg_options)
    if args.tile:
        with reading(args.config):
            for_tiles(cfg)
    names = unique_names(find_pictures(args.pictures))
    out = make_folder(args.out)
    predictor = load_predictor(cfg, resolve_checkpoint(args.checkpoint), check_device(args.device))
    with pixel_limit(2**31) if args.tile else nullcontext():
        return find_all(predictor, names, out, args)


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
