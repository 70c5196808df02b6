"""Results for picture files: what the command lines for trained and for exported models share."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import UserError
from .instance_pictures import draw_instances
from .instances import Instances, coco_results
from .large_pictures import Head
from .picture_files import image_ids
from .pictures import Palette, read_picture, save_picture, save_result
from .prefetch import prefetch


def add_picture_options(parser: argparse.ArgumentParser) -> None:
    """The options of a command line that looks at pictures."""
    parser.add_argument('pictures', nargs='+', help='files, folders or globs')
    parser.add_argument('--out', required=True, metavar='DIR', help='folder for the results')
    parser.add_argument(
        '--batch', type=int, default=1, help='pictures of one size, or tiles, run together (1)'
    )
    parser.add_argument('--opacity', type=float, default=0.5, help='of the overlay, 0 to 1')
    parser.add_argument(
        '--score-thr', type=float, default=0.3, help='objects less certain are not drawn, 0 to 1'
    )


def check_picture_options(args: argparse.Namespace) -> None:
    """Check the values of ``add_picture_options``.

    Raises:
        UserError: With the option that is out of range.
    """
    if args.batch < 1:
        raise UserError(f'--batch {args.batch} must be 1 or more')
    for name in ('opacity', 'score_thr'):
        if not 0 <= getattr(args, name) <= 1:
            option = f'--{name.replace("_", "-")}'
            raise UserError(f'{option} {getattr(args, name)} must be between 0 and 1')


def tell_deep(heads: Mapping[Path, Head]) -> None:
    """Print a note if pictures have more than 8 bits."""
    deep = [str(path) for path, head in heads.items() if head.deep]
    if deep:
        which = f'{deep[0]} and {len(deep) - 1} more' if len(deep) > 1 else deep[0]
        print(f'note: 16 bits are divided by 256 in {which}; if dark, write 8 bits first')


class Meaning(NamedTuple):
    """What the numbers that a model gives stand for.

    Attributes:
        classes: Class names.
        palette: RGB colour of each class.
        label_offset: Of a segmentor, added to class numbers in label files.
        category_ids: Of a detector, the annotations' id of each class; None for a segmentor.
    """

    classes: Sequence[str]
    palette: Palette
    label_offset: int = 0
    category_ids: Sequence[int] | None = None


class Loaded(NamedTuple):
    """A picture from a file, and what the model takes of it."""

    path: Path
    picture: np.ndarray
    item: Any


def failure(path: Path, error: Exception) -> UserError:
    """What is told of a picture that a model fails on."""
    reason = str(error) if isinstance(error, UserError) else f'{type(error).__name__}: {error}'
    return UserError(f'{path}: {" ".join(reason.split())}')


class Results:
    """Pictures of a run and the files that are written for them.

    Args:
        names: Of the results of each picture.
        meaning: Of what the model gives.
        args: Command line with the options of ``add_picture_options``.
        tick: Called with each picture that cannot be read or looked at.

    Attributes:
        failed: What is wrong with the pictures that could not be read or looked at.
    """

    def __init__(
        self,
        names: Mapping[Path, str],
        meaning: Meaning,
        args: argparse.Namespace,
        tick: Callable[[Path], None],
    ) -> None:
        self.names = names
        self.meaning = meaning
        self.out = Path(args.out)
        self.opacity: float = args.opacity
        self.score_thr: float = args.score_thr
        self.tick = tick
        self.failed: list[UserError] = []
        self.ids = image_ids(names)
        self.objects: list[dict[str, Any]] = []
        self.begin, self.busy = time.perf_counter(), 0.0

    def load(self, prepare: Callable[[np.ndarray], Any], ahead: int) -> Iterator[Loaded]:
        """The pictures that can be read, in order.

        Args:
            prepare: What the model takes of a picture; one that it fails on counts as unreadable.
            ahead: Pictures that are read while others are looked at.
        """

        def read(path: Path) -> Loaded | UserError:
            try:
                picture = read_picture(path)
            except UserError as error:
                return error
            try:
                return Loaded(path, picture, prepare(picture))
            except Exception as error:  # frameworks raise anything on what has no size for them
                return failure(path, error)

        for path, one in zip(self.names, prefetch(read, self.names, ahead), strict=True):
            if isinstance(one, Loaded):
                yield one
            else:
                self.failed.append(one)
                self.tick(path)

    def look(
        self, batch: Sequence[Loaded], find: Callable[[Sequence[Loaded]], Sequence[Any]]
    ) -> Iterator[tuple[Loaded, Any, float]]:
        """Each picture with what is found in it and the seconds that took.

        Args:
            batch: Pictures to look at together; one by one, if that fails.
            find: The model. A picture that it fails on alone counts as unreadable.
        """
        start = time.perf_counter()
        try:
            found = find(batch)
        except Exception as error:  # frameworks raise anything, and the other pictures go on
            if len(batch) == 1:
                self.failed.append(failure(batch[0].path, error))
                self.tick(batch[0].path)
                return
            for one in batch:
                yield from self.look([one], find)
            return
        seconds = (time.perf_counter() - start) / len(batch)
        for one, each in zip(batch, found, strict=True):
            yield one, each, seconds

    def save(self, loaded: Loaded, found: np.ndarray | Instances, seconds: float) -> None:
        """Write what is found in a picture.

        Args:
            loaded: The picture.
            found: Class number of every pixel, (H, W), or objects.
            seconds: That the model took.
        """
        self.busy += seconds
        path, picture, name = loaded.path, loaded.picture, self.names[loaded.path]
        shown = (self.meaning.classes, self.meaning.palette, self.opacity)
        if self.meaning.category_ids is None:
            assert isinstance(found, np.ndarray)
            save_result(self.out, name, picture, found, *shown, self.meaning.label_offset)
            return
        assert isinstance(found, Instances)
        drawn = draw_instances(picture, found.above(self.score_thr), *shown)
        save_picture(self.out / 'overlays' / f'{name}.png', drawn)
        entries = coco_results(found, self.ids[path], self.meaning.category_ids)
        self.objects.extend({'file_name': path.name, **entry} for entry in entries)

    def finish(self) -> int:
        """Write ``results.json`` for objects, and tell how the run went.

        Returns:
            Exit code: 1 if a picture could not be read or looked at; each is named on stderr.
        """
        seconds = time.perf_counter() - self.begin
        if self.meaning.category_ids is not None:
            (self.out / 'results.json').write_text(json.dumps(self.objects))
        done = len(self.names) - len(self.failed)
        print(f'{done} of {len(self.names)} pictures done, results in {self.out}')
        if done:
            print(
                f'{done / seconds:.3g} pictures per second, the model alone {done / self.busy:.3g}'
            )
        for error in self.failed:
            print(f'error: {error}', file=sys.stderr)
        return 1 if self.failed else 0
