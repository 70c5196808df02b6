"""A trained segmentor or detector over picture files: ``tools/infer.py`` with a config."""

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from .checkpoint_io import resolve_checkpoint
from .config import check_device, load_config, reading
from .errors import make_folder
from .inference import Detector, Segmenter, load_predictor
from .large_pictures import check_memory, pixel_limit, read_head
from .picture_files import find_pictures, unique_names
from .prefetch import runs
from .results import Loaded, Meaning, Results, check_picture_options, tell_deep
from .tiling import check_tiles, count_tiles, for_tiles, segment


def look(
    predictor: Segmenter | Detector,
    pictures: Iterable[Loaded],
    args: argparse.Namespace,
    results: Results,
    tick: Callable[[int], None],
) -> Iterator[tuple[Loaded, Any, float]]:
    """Each picture with what is found in it and the seconds that took.

    Args:
        predictor: The model.
        pictures: In any sizes.
        args: Of the command line.
        results: Takes note of the pictures that the model fails on.
        tick: Called with the number of pictures, or of tiles, done.
    """
    if isinstance(predictor, Segmenter) and args.tile:
        options = (args.tile, args.overlap, args.batch, tick)
        for one in pictures:
            yield from results.look(
                [one], lambda some: [segment(predictor, some[0].picture, *options)]
            )
        return
    for batch in runs(pictures, lambda one: tuple(one.item['inputs'].shape), args.batch):
        for found in results.look(
            batch, lambda some: predictor.predict([one.item for one in some])
        ):
            yield found
            tick(1)


def find_all(
    predictor: Segmenter | Detector, names: dict[Path, str], args: argparse.Namespace
) -> int:
    """Write the results for all pictures; see ``run_trained``."""
    steps = dict.fromkeys(names, 1)  # of the progress
    meaning = Meaning(predictor.classes, predictor.palette)
    if isinstance(predictor, Segmenter):
        meaning = meaning._replace(label_offset=predictor.label_offset)
        heads = {path: head for path in names if (head := read_head(path))}
        check_memory(heads, len(predictor.classes), args.device, args.tile, args.batch)
        tell_deep(heads)
        if args.tile:
            cut = (args.tile, args.overlap)
            steps.update({path: count_tiles(head[:2], *cut) for path, head in heads.items()})
    else:
        meaning = meaning._replace(category_ids=predictor.category_ids)

    def prepare(picture: np.ndarray) -> dict[str, Any]:
        return {} if args.tile else predictor.prepare(picture)

    # Tiles may take half a minute each: time left is estimated from the last ten minutes.
    with Progress(speed_estimate_period=600) as progress:
        task = progress.add_task('looking', total=sum(steps.values()))
        tick = partial(progress.advance, task)
        results = Results(names, meaning, args, lambda path: tick(steps[path]))
        pictures = results.load(prepare, 1 if args.tile else 2 * args.batch)
        for one, found, seconds in look(predictor, pictures, args, results, tick):
            results.save(one, found, seconds)
    return results.finish()


def run_trained(args: argparse.Namespace) -> int:
    """Segment, or find objects in, all pictures that can be read.

    Args:
        args: Command line of ``tools/infer.py``.

    Returns:
        0, or 1 if some picture could not be read or the model fails on it; each is named on stderr.

    Raises:
        UserError: If an option, the config, the checkpoint or the folder is wrong.
    """
    check_picture_options(args)
    args.overlap = check_tiles(args.tile, args.overlap)
    cfg = load_config(args.config, args.cfg_options)
    if args.tile:
        with reading(args.config):
            for_tiles(cfg)
    names = unique_names(find_pictures(args.pictures))
    make_folder(args.out)
    predictor = load_predictor(cfg, resolve_checkpoint(args.checkpoint), check_device(args.device))
    with pixel_limit(2**31) if args.tile else nullcontext():
        return find_all(predictor, names, args)
