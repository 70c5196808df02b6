"""Check the data that a config trains and tests on, before a run wastes time on it."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mmengine.config import Config

from ..building import HEAD, building
from .check_duplicates import duplicates
from .check_objects import plan_objects
from .check_pairs import plan_masks
from .check_report import Fault, Found, Part, Plan, Report
from .check_sources import find_sources, without_pipeline
from .check_work import in_random_order, in_threads, spread
from .coco_annotations import listing

SPLITS = ('train', 'val', 'test')
QUICK_PICTURES = 64  # of each data set
QUICK_SECONDS = 1.2  # for each split
QUICK_LEAST = 0.2  # seconds for pictures, where reading the names took all of it
#: Shows progress: gets results, what they are of, and how many there will be; hands them on.
Track = Callable[[Iterable[Found], str, int], Iterable[Found]]


def silent(results: Iterable[Found], what: str, total: int) -> Iterable[Found]:
    """Progress that nobody sees."""
    return results


def open_pictures(part: Part, plan: Plan, results: Iterable[Found]) -> list[Fault]:
    """Add what is in pictures to the figures of a split.

    Returns:
        What is wrong.
    """
    faults: list[Fault] = []
    indexed: list[str] = []
    counts = plan.counts.copy()
    for found in results:
        if found.size:
            part.sizes.append(found.size)
        if found.counts is not None:
            counts += found.counts
        part.ignored += found.ignored
        faults += found.faults
        indexed += filter(None, [found.indexed])
    if indexed:
        words = f'palette indices are taken as labels: {len(indexed)} files, of other colours than '
        words += 'the palette of the data set. tools/convert_masks.py makes labels of colours'
        faults.append(Fault('warning', 'palette masks', part.split, indexed[0], words))
    for name, number in zip(plan.classes, counts, strict=True):
        part.classes[name] += int(number)
    return faults


def never_seen(part: Part, file: str) -> list[Fault]:
    """A warning if the split has classes that never occur."""
    missing = [name.strip() for name, number in part.classes.items() if number == 0]
    if not missing or not part.pictures:
        return []
    words = f'{len(missing)} of {len(part.classes)} classes never occur: {listing(missing)}'
    return [Fault('warning', 'class that never occurs', part.split, file, words)]


def numbered_heads(node: Any, name: str = '') -> Iterator[tuple[str, int]]:
    """Dotted name and number of classes of every head of a model's config that knows them."""
    if isinstance(node, Mapping):
        if HEAD.search(name) and 'num_classes' in node:
            yield name, node['num_classes']
        children: Iterable[tuple[Any, Any]] = node.items()
    else:
        children = enumerate(node) if isinstance(node, list | tuple) else ()
    for key, child in children:
        yield from numbered_heads(child, f'{name}.{key}' if name else str(key))


def wrong_heads(cfg: Config, split: str, classes: int) -> list[Fault]:
    """Heads of another number of classes than the data set, which ``check_classes`` refuses."""
    return [
        Fault(
            'error',
            'number of classes',
            split,
            str(cfg.filename),
            f'{name}.num_classes is {number}, but the data set has {classes} classes: set '
            f'model.{name}.num_classes={classes}',
        )
        for name, number in numbered_heads(cfg.model)
        if classes and number not in (None, classes)
    ]


def check_split(report: Report, cfg: Config, split: str, track: Track) -> None:
    """Check one split and add it to the report."""
    begin = time.monotonic()
    part = report.parts[split] = Part(split)
    counted = True
    sources = find_sources(cfg, split)
    for number, source in enumerate(sources, 1):
        if source.task == 'unknown':
            words = f'{source.reason}: its files are not checked'
            fault = Fault('warning', 'data that is not checked', split, report.config, words)
            report.faults.append(fault)
            counted = False
            continue
        with building(cfg):
            is_seg = source.task == 'segmentation'
            plan = plan_masks(source) if is_seg else plan_objects(source, report.quick)
        part.plans.append(plan)
        heads = wrong_heads(cfg, split, len(plan.classes))
        report.faults += [fault for fault in heads if fault not in report.faults]
        part.unit, part.pictures = plan.unit, part.pictures + plan.pictures
        part.ignored += plan.ignored
        jobs, until = plan.jobs, math.inf
        if report.quick:
            jobs = in_random_order(spread(jobs, QUICK_PICTURES))
            until = begin + QUICK_SECONDS * number / len(sources)
            until = max(until, time.monotonic() + QUICK_LEAST)
        results = track(in_threads(plan.look, jobs, until), split, len(jobs))
        report.faults += plan.faults + open_pictures(part, plan, results)
        report.notes += plan.notes
        counted = counted and (plan.counted or (is_seg and not report.quick))
    if counted:
        report.faults += never_seen(part, report.config)


def check(
    cfg: Config, splits: Sequence[str] = (), quick: bool = False, track: Track = silent
) -> Report:
    """Read the files of a config's data sets and compare them with the config.

    Args:
        cfg: A config with ``<split>_dataloader``, whose framework is usable and whose folders are
            there, see ``building.require_framework`` and ``check_data``; not changed.
        splits: 'train', 'val', 'test'; all that the config has, if empty. A test split that is the
            val split is looked at once.
        quick: See ``quick_check``.
        track: Shows progress.

    Returns:
        What was found.

    Raises:
        UserError: If a split is missing, or a data set refuses its settings.
    """
    splits = [
        split
        for split in SPLITS
        if split in splits or (not splits and cfg.get(f'{split}_dataloader'))
    ]
    report = Report(str(cfg.filename), quick)
    for split in splits:
        if split == 'test' and 'val' in report.parts and same_files(cfg):
            report.notes.append('test is the same data as val')
            continue
        check_split(report, cfg, split, track)
    if not quick and 'train' in report.parts:
        for split, part in report.parts.items():
            if split != 'train':
                report.faults += duplicates(report.parts['train'], part)
    return report


def same_files(cfg: Config) -> bool:
    """Whether the val and the test split are one, but for how they are processed."""
    val, test = (cfg[f'{split}_dataloader'] for split in ('val', 'test'))
    return without_pipeline(val.get('dataset')) == without_pipeline(test.get('dataset'))


def quick_check(cfg: Config, splits: Sequence[str]) -> Report:
    """Check in about three seconds, whatever the size of the data.

    All files are compared by name, and some pictures are opened: the same ones each time as far as
    the time goes. Large annotation files are left to the data set, duplicates to ``check``.

    Args:
        cfg: See ``check``.
        splits: Those of 'train', 'val', 'test' to check.

    Returns:
        What was found.

    Raises:
        UserError: See ``check``.
    """
    return check(cfg, [split for split in splits if cfg.get(f'{split}_dataloader')], quick=True)
