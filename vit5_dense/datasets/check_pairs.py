"""Pictures of a segmentation data set and their label files, paired by name and opened."""

import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..pictures import SUFFIXES, Palette, PictureError, overlay, read_picture
from .check_masks import Rule, error_in, label_table, look_at_labels, read_values
from .check_report import Fault, Found, Plan
from .check_sources import Source

LACKING = ('missing picture', 'picture without a mask')


class Pair(NamedTuple):
    """Files of a picture and of its labels, if the data set has labels.

    They are texts, since a set may have a million of them.
    """

    picture: str
    labels: str | None


def look_at_pair(pair: Pair, rule: Rule) -> Found:
    """Check a picture and its label map; see ``Found``."""
    size, faults = None, []
    try:
        height, width = read_picture(Path(pair.picture)).shape[:2]
        size = (width, height)
    except PictureError as error:
        reason = str(error).removeprefix(f'{pair.picture} ')
        faults.append(error_in('unreadable picture', rule.split, pair.picture, reason))
    if pair.labels is None:
        return Found(size, None, Counter(), faults)
    found = look_at_labels(Path(pair.labels), rule, size)
    return found._replace(size=size, faults=faults + found.faults)


def draw_pair(pair: Pair, rule: Rule, palette: Palette) -> np.ndarray:
    """A picture with its labels over it, RGB."""
    picture = read_picture(Path(pair.picture))
    if pair.labels is None:
        return picture
    values, _ = read_values(Path(pair.labels), rule.decoder)
    return overlay(picture, rule.table[values], palette)


def files_below(folder: str | None, inner: str = '') -> Iterator[str]:
    """Names of files in a folder and in those within it, as mmseg finds them: no hidden ones."""
    if not folder:
        return
    with os.scandir(os.path.join(folder, inner)) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from files_below(folder, f'{inner}{entry.name}/')
            elif not entry.name.startswith('.') and entry.is_file():
                yield inner + entry.name


def pairs_in_folders(dataset: Any, split: str) -> tuple[list[Pair], list[Fault]]:
    """Pair all files of a data set's folders, as ``BaseSegDataset`` does.

    Returns:
        Pairs of files that are there, in the order of their names, and what has no counterpart or
        is passed over.
    """
    folder = os.path.normpath(dataset.data_prefix.get('img_path') or '.')
    label_folder = dataset.data_prefix.get('seg_map_path')
    label_folder = label_folder and os.path.normpath(label_folder)
    suffix, label_suffix = dataset.img_suffix, dataset.seg_map_suffix
    names = sorted(files_below(folder))
    found = {os.path.join(label_folder, name) for name in files_below(label_folder)}
    pairs, faults, wanted, others = [], [], set(), []
    for name in names:
        path = os.path.join(folder, name)
        if not name.endswith(suffix):
            others.append(path)
            continue
        target = label_folder and f'{label_folder}/{name.removesuffix(suffix)}{label_suffix}'
        wanted |= {path, target}
        if not target or target in found:
            pairs.append(Pair(path, target))
        else:
            words = f'its label file {target} does not exist'
            faults.append(error_in('picture without a mask', split, path, words))
    for path in sorted(found - wanted):
        if path.endswith(label_suffix):
            words = f'no picture in {folder} has its name and ends with {suffix}'
            faults.append(error_in('mask without a picture', split, path, words))
    for path in others:
        if path not in found and path.lower().endswith(SUFFIXES):
            words = f'not read, since img_suffix is {suffix!r}'
            faults.append(Fault('warning', 'picture of another suffix', split, path, words))
    return pairs, faults


def pairs_of_file(dataset: Any, split: str) -> tuple[list[Pair], list[Fault]]:
    """Pairs that the data set's ``ann_file`` lists; others may lie in the folders beside them.

    Returns:
        Pairs of files that are there, in the order of the list, and what is missing.
    """
    pairs, faults = [], []
    for entry in dataset.load_data_list():
        pair = Pair(entry['img_path'], entry.get('seg_map_path'))
        if not os.path.isfile(pair.picture):
            words = f'does not exist, but {dataset.ann_file} names it'
            faults.append(error_in('missing picture', split, pair.picture, words))
        elif pair.labels and not os.path.isfile(pair.labels):
            words = f'its label file {pair.labels} does not exist'
            faults.append(error_in('picture without a mask', split, pair.picture, words))
        else:
            pairs.append(pair)
    return pairs, faults


def plan_masks(source: Source) -> Plan:
    """Pair the files of a segmentation data set by name.

    Returns:
        What is left to open; a job is a ``Pair``.
    """
    dataset, split = source.dataset, source.split
    names = dataset.metainfo.get('classes')
    classes = () if isinstance(names, str) or not names else tuple(names)
    palette = dataset.metainfo.get('palette') or ()
    rule = Rule(
        split,
        label_table(dataset.reduce_zero_label, dataset.label_map),
        len(classes),
        source.ignored,
        dataset.reduce_zero_label,
        palette,
        source.decoder,
    )
    listed = dataset.ann_file and not os.path.isdir(dataset.ann_file)
    pairs, faults = (pairs_of_file if listed else pairs_in_folders)(dataset, split)
    lacking = sum(fault.kind in LACKING for fault in faults)
    folder = dataset.data_prefix.get('img_path') or ''
    labelled = bool(dataset.data_prefix.get('seg_map_path'))
    if labelled and not classes:
        words = f'classes is {names!r}: set metainfo=dict(classes=(...)) to a tuple of names'
        faults.append(error_in('class names', split, folder, words))
    if not pairs and not lacking:
        words = f'no picture whose name ends with {dataset.img_suffix}: set img_suffix'
        faults.append(error_in('no pictures', split, folder, words))
    return Plan(
        classes=classes if labelled else (),
        palette=palette,
        unit='pixels',
        jobs=pairs if classes or not labelled else [],
        look=partial(look_at_pair, rule=rule),
        draw=partial(draw_pair, rule=rule, palette=palette),
        path=lambda pair: Path(pair.picture),
        pictures=len(pairs) + lacking,
        counts=np.zeros(len(classes) if labelled else 0, np.int64),
        faults=faults,
        notes=[] if labelled else [f'{split}: {folder} has no seg_map_path, so no labels'],
    )
