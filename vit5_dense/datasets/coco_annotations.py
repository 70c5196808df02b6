"""COCO annotation files: mistakes found before a network is built. No framework is needed."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import inf, isnan
from pathlib import Path
from typing import Any

from ..errors import UserError

Entry = Mapping[str, Any]
Kind = tuple[set[type], str]
# Types as JSON gives them, in which true and false are no numbers, and their words for a message.
WHOLE: Kind = ({int}, 'a whole number')
NUMBER: Kind = ({int, float}, 'a number')
TEXT: Kind = ({str}, 'a text')
BOX: Kind = ({list}, '[x, y, width, height] in pixels')
KEYS = {
    'images': {'id': WHOLE, 'file_name': TEXT, 'height': NUMBER, 'width': NUMBER},
    'annotations': {
        'id': WHOLE, 'image_id': WHOLE, 'category_id': WHOLE, 'bbox': BOX, 'area': NUMBER
    },
    'categories': {'id': WHOLE, 'name': TEXT},
}  # fmt: skip

FAR = 1_000_000  # pixels: an outline takes memory for each, also outside the picture
LONGEST = 7  # characters of a compressed run length: 35 bits, for more pixels than a picture has
#: One of them: the bit for "more" (32) is in all characters but the last.
NUMBERS = re.compile(f'[P-o]{{0,{LONGEST - 1}}}[0-O]')


class AnnotationError(UserError):
    """A mistake in a COCO file; the message names the file and the entry."""


def read_annotations(path: Path) -> dict[str, Any]:
    """Read a COCO file and check its form.

    Args:
        path: JSON file.

    Returns:
        Its content; a file of pictures without labels gets empty ``annotations``.

    Raises:
        AnnotationError: If it is no JSON, or entries lack keys, have values of another kind or an
            id twice, or point to a picture or category that is not there.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise AnnotationError(f'{path} cannot be read as JSON: {error}') from error
    if isinstance(content, dict):
        content.setdefault('annotations', [])
    check_form(content, path)
    return content


def check_form(content: Any, path: Path) -> None:
    """Check keys, values and references of all entries.

    Raises:
        AnnotationError: With the first entry that is wrong.
    """
    for table, keys in KEYS.items():
        entries = content.get(table) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise AnnotationError(f'{path} is no COCO file: it has no list {table!r}')
        for place, entry in enumerate(entries):
            if mistake := entry_mistake(entry, keys):
                number = f' (id {entry["id"]})' if isinstance(entry, dict) and 'id' in entry else ''
                raise AnnotationError(f'{path}: {table}[{place}]{number} {mistake}')
        doubled = [number for number, n in Counter(e['id'] for e in entries).items() if n > 1]
        if doubled:
            raise AnnotationError(f'{path}: several {table} have the id {doubled[0]}')
    pictures = {entry['id'] for entry in content['images']}
    categories = {entry['id'] for entry in content['categories']}
    for entry in content['annotations']:
        if mistake := annotation_mistake(entry, pictures, categories):
            raise AnnotationError(f'{path}: annotation {entry["id"]} {mistake}')


def entry_mistake(entry: Any, keys: Mapping[str, Kind]) -> str | None:
    """What is wrong with the keys of an entry or the types of their values."""
    found = entry if isinstance(entry, dict) else {}
    if missing := [key for key in keys if key not in found]:
        return f'has no {", ".join(missing)}'
    for key, (types, words) in keys.items():
        if type(entry[key]) not in types:
            return f'has {key} {entry[key]!r}; it must be {words}'
    return None


def annotation_mistake(
    entry: Entry, pictures: Collection[int], categories: Collection[int]
) -> str | None:
    """What is wrong with an annotation's id, references or box."""
    if entry['id'] == 0:
        return (
            'has the id that COCO scoring takes for "no match", so that a perfect detection counts '
            'as wrong; number annotations from 1'
        )
    for key, known in (('image_id', pictures), ('category_id', categories)):
        if entry[key] not in known:
            return f'has {key} {entry[key]}, which the file does not have'
    if not is_box(entry['bbox']):
        return f'has bbox {entry["bbox"]}; it must be {BOX[1]}'
    return None


def is_box(box: Sequence[Any]) -> bool:
    """Whether it is [x, y, width, height]: finite numbers, the sizes not negative."""
    if len(box) != 4:
        return False
    x, y, width, height = box
    numbers = {type(x), type(y), type(width), type(height)} <= NUMBER[0]
    return numbers and -inf < x < inf and -inf < y < inf and 0 <= width < inf and 0 <= height < inf


def category_ids(content: Entry, classes: Sequence[str], path: Path) -> list[int]:
    """Ids of named categories, in the order of the names.

    Args:
        content: A COCO file.
        classes: Names to find.
        path: For messages.

    Raises:
        AnnotationError: If a name is not in the file, or in it twice.
    """
    if isinstance(classes, str):
        raise AnnotationError(
            f"classes={classes!r} is one word: write a tuple, classes=('{classes}',) with the comma"
        )
    names = [entry['name'] for entry in content['categories']]
    missing = [name for name in classes if name not in names]
    if missing:
        raise AnnotationError(
            f'{path}: {len(classes) - len(missing)} of {len(classes)} classes found, not '
            f'{listing(missing)}; the file has {listing(names)}. Set metainfo=dict(classes=...) of '
            'the data set to names of the file'
        )
    doubled = [name for name in classes if names.count(name) > 1]
    if doubled:
        raise AnnotationError(f'{path} has several categories of the name {doubled[0]!r}')
    ids = {entry['name']: entry['id'] for entry in content['categories']}
    return [ids[name] for name in classes]


def listing(names: Sequence[str]) -> str:
    """The first few names, quoted."""
    more = f' and {len(names) - 8} more' if len(names) > 8 else ''
    return ', '.join(map(repr, names[:8])) + more


@lru_cache(maxsize=1 << 16)
def number_of(digits: str) -> int:
    """A number from its characters: five bits in each, the lowest first, and the sign's at last."""
    codes = [ord(digit) - ord('0') for digit in digits]
    value = sum((code & 31) << 5 * place for place, code in enumerate(codes))
    return value - (1 << 5 * len(codes)) if codes[-1] & 16 else value


def run_lengths(code: str) -> list[int] | None:
    """Decode COCO's compressed run lengths: from the fourth on differences to those two before.

    Returns:
        Pixels of background and object in turn; None if it is no such code.
    """
    digits = NUMBERS.findall(code)
    if ''.join(digits) != code:
        return None
    runs = [*map(number_of, digits)]
    for first in (1, 2):
        runs[first::2] = accumulate(runs[first::2])
    return runs


def runs_mistake(segmentation: Entry, height: float, width: float) -> str | None:
    """What is wrong with run lengths; short ones give masks of whatever is in the memory."""
    size, counts = segmentation.get('size'), segmentation.get('counts')
    runs = run_lengths(counts) if isinstance(counts, str) else counts
    if size != [height, width]:
        return f'run lengths of size {size!r:.40}, the picture is [{height}, {width}]'
    if not isinstance(runs, list) or {*map(type, runs)} != {int} or min(runs) < 0:
        return f'counts {counts!r:.40} are no run lengths'
    if sum(runs) != height * width:
        return f'run lengths of {sum(runs)} pixels, the picture has {height * width}'
    return None


def are_coordinates(values: Sequence[Any]) -> bool:
    """Whether they are numbers, none of them NaN or beyond ``FAR``."""
    return (
        {*map(type, values)} <= NUMBER[0]
        and min(values, default=0) > -FAR
        and max(values, default=0) < FAR
        and not isnan(sum(values))
    )


def mask_mistake(segmentation: Any, height: float, width: float) -> str | None:
    """What is wrong with an object's mask.

    Args:
        segmentation: Polygons, which may be degenerate since mmdet leaves those out, or run
            lengths.
        height: Of the picture, in pixels.
        width: Of the picture, in pixels.
    """
    if isinstance(segmentation, dict):
        return runs_mistake(segmentation, height, width)
    if not isinstance(segmentation, list) or {*map(type, segmentation)} != {list}:
        return f'{segmentation!r:.40} is neither polygons nor run lengths'
    for polygon in segmentation:
        if not are_coordinates(polygon):
            return f'polygon {polygon!r:.40} is no flat list x, y, x, y ... of numbers below {FAR}'
    return None


def check_masks(content: Entry, path: Path) -> None:
    """Check that every object has a mask.

    Raises:
        AnnotationError: With the first annotation that has none, and how many there are.
    """
    sizes = {entry['id']: (entry['height'], entry['width']) for entry in content['images']}
    lacking = [
        (entry['id'], mistake)
        for entry in content['annotations']
        if (mistake := mask_mistake(entry.get('segmentation'), *sizes[entry['image_id']]))
    ]
    if lacking:
        number, mistake = lacking[0]
        raise AnnotationError(
            f'{path}: {len(lacking)} of {len(content["annotations"])} annotations have no '
            f'segmentation to learn from, the first is annotation {number}: {mistake}; a mask '
            'head cannot learn from boxes: mend or remove them, or train a model without masks '
            '(with_mask=False)'
        )


def check_objects(content: Entry, wanted: Iterable[int], path: Path) -> None:
    """Check that there is something to learn.

    Args:
        content: A COCO file.
        wanted: Ids of the categories that are learnt.
        path: For messages.

    Raises:
        AnnotationError: If no annotation is of these categories, or all are crowds.
    """
    wanted = set(wanted)
    crowds = [bool(e.get('iscrowd')) for e in content['annotations'] if e['category_id'] in wanted]
    if all(crowds):
        what = 'has no object of the classes'
        if crowds:
            what = f'all {len(crowds)} objects of the classes are crowds (iscrowd=1)'
        raise AnnotationError(f'{path}: {what}: there is nothing to learn')
