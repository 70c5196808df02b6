"""Objects of a detection data set, looked at as they are in its annotation file and pictures."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..inference import random_palette
from ..instance_pictures import draw_instances
from ..instances import Instances
from ..pictures import SUFFIXES, Palette, PictureError, read_picture
from .check_boxes import Tally
from .check_report import Fault, Found, Plan
from .check_sources import Source
from .coco_annotations import (
    AnnotationError,
    Entry,
    category_ids,
    check_masks,
    check_objects,
    listing,
    mask_mistake,
    read_annotations,
)

QUICK_BYTES = 10 * 2**20  # an annotation file of this size is checked in about a second


class Recorded(NamedTuple):
    """A picture, and its size in the annotation file if that was read."""

    path: Path
    size: tuple[float, float] | None = None  # width, height
    objects: Sequence[Entry] = ()


def look_at_picture(job: Recorded, split: str) -> Found:
    """Open a picture and compare its size with the recorded one."""
    try:
        height, width = read_picture(job.path).shape[:2]
    except PictureError as error:
        reason = str(error).removeprefix(f'{job.path} ')
        fault = Fault('error', 'unreadable picture', split, str(job.path), reason)
        return Found(None, None, Counter(), [fault])
    faults = []
    if job.size and job.size != (width, height):
        words = f'{job.size[0]}x{job.size[1]} is recorded, the picture is {width}x{height}'
        if job.size == (height, width):
            words += ': turned by its EXIF orientation, or width and height are swapped'
        faults.append(Fault('error', 'size mismatch', split, str(job.path), words))
    return Found((width, height), None, Counter(), faults)


def read_recorded(job: Recorded) -> np.ndarray:
    """A picture without its objects, RGB."""
    return read_picture(job.path)


def mask_of(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Polygons or run lengths as a bitmap, (H, W), bool."""
    from pycocotools import mask  # of the detection extra

    code = segmentation
    if isinstance(segmentation, list):
        code = mask.merge(mask.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation['counts'], list):
        code = mask.frPyObjects(segmentation, height, width)
    return mask.decode(code).astype(bool)


def draw_picture(
    job: Recorded, labels: Mapping[int, int], classes: Sequence[str], palette: Palette
) -> np.ndarray:
    """A picture with its objects over it, RGB."""
    picture = read_picture(job.path)
    height, width = picture.shape[:2]
    shown = [entry for entry in job.objects if entry['category_id'] in labels]
    boxes = np.array([entry['bbox'] for entry in shown], float).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    masks = None
    codes = [entry.get('segmentation') for entry in shown]
    if shown and not any(mask_mistake(code, height, width) for code in codes):
        masks = np.stack([mask_of(code, height, width) for code in codes])
    numbers = np.array([labels[entry['category_id']] for entry in shown], int)
    return draw_instances(picture, Instances(boxes, numbers, None, masks), classes, palette)


def file_faults(source: Source, content: Entry, path: Path) -> tuple[list[int], bool, list[Fault]]:
    """Check what the data set asks of its annotation file.

    Returns:
        The file's id of each class, empty if the names do not fit; whether there are masks to
        learn from; and what is wrong.
    """
    classes, split, faults = source.dataset.metainfo['classes'], source.split, []
    masked = source.with_masks
    ids: list[int] = []
    try:
        ids = category_ids(content, classes, path)
    except AnnotationError as error:
        faults.append(refused('class names', split, path, error))
    names = [entry['name'] for entry in content['categories'] if entry['id'] in ids]
    if source.own_order and ids and names != list(classes):
        words = (
            f'the file has {listing(names)} in this order, the config {listing(classes)}, and '
            'CocoDataset numbers labels by the file: use ViT5CocoDataset'
        )
        faults.append(Fault('error', 'order of classes', split, str(path), words))
    if any(entry['id'] == 0 for entry in content['categories']):
        words = 'a category has the id 0, which some tools take for the background'
        faults.append(Fault('warning', 'category id 0', split, str(path), words))
    if source.with_masks:
        try:
            check_masks(content, path)
        except AnnotationError as error:
            masked = False
            faults.append(refused('objects without a mask', split, path, error))
    if ids and not source.dataset.test_mode:
        try:
            check_objects(content, ids, path)
        except AnnotationError as error:
            faults.append(refused('nothing to learn', split, path, error))
    return ids, masked, faults


def refused(kind: str, split: str, path: Path, error: AnnotationError) -> Fault:
    """The error that stops a data set from reading its annotation file."""
    return Fault('error', kind, split, str(path), str(error).removeprefix(str(path)).lstrip(': '))


def plan_objects(source: Source, quick: bool) -> Plan:
    """Check the annotation file of a detection data set.

    Args:
        source: The data set.
        quick: Leave out a large annotation file, which the data set checks when it is built.

    Returns:
        What is left to open; a job is a ``Recorded``.
    """
    dataset, split, path = source.dataset, source.split, Path(source.dataset.ann_file)
    classes = dataset.metainfo['classes']
    names = () if isinstance(classes, str) else tuple(classes)
    palette = dataset.metainfo.get('palette') or random_palette(len(names))
    folder = Path(dataset.data_prefix.get('img') or '')
    plan = Plan(
        classes=names,
        palette=palette,
        unit='objects',
        jobs=[],
        look=partial(look_at_picture, split=split),
        draw=read_recorded,
        path=lambda job: job.path,
        pictures=0,
        counts=np.zeros(len(names), np.int64),
    )
    if quick and path.stat().st_size > QUICK_BYTES:
        megabytes = path.stat().st_size / 2**20
        plan.notes = [f'{path} ({megabytes:.0f} MB) is read when the data set is built']
        files = sorted(one.path for one in os.scandir(folder) if one.name.endswith(SUFFIXES))
        plan.jobs, plan.pictures = [Recorded(Path(one)) for one in files], len(files)
        return plan
    try:
        content = read_annotations(path)
    except AnnotationError as error:
        plan.faults = [refused('annotation file', split, path, error)]
        return plan
    ids, masked, plan.faults = file_faults(source, content, path)
    labels = {number: label for label, number in enumerate(ids)}
    tally = Tally(split, path, labels, masked)
    images = {entry['id']: entry for entry in content['images']}
    objects: dict[int, list[Entry]] = {}
    for entry in content['annotations']:
        image = images[entry['image_id']]
        objects.setdefault(image['id'], []).append(entry)
        tally.add(entry, image['width'], image['height'])
    if ids:
        plan.counts, plan.ignored, plan.counted = tally.counts, tally.ignored, True
        plan.draw = partial(draw_picture, labels=labels, classes=names, palette=palette)
    plan.faults += tally.faults
    jobs = []
    for image in images.values():
        size = (image['width'], image['height'])
        job = Recorded(folder / image['file_name'], size, objects.get(image['id'], ()))
        if job.path.is_file():
            jobs.append(job)
        else:
            words = f'does not exist, but {path} names it'
            plan.faults.append(Fault('error', 'missing picture', split, str(job.path), words))
    plan.jobs, plan.pictures = jobs, len(images)
    return plan
