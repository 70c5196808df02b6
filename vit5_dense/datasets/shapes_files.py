"""The embedded scenes as files: pictures, ADE20K-style label maps and COCO instances.

Layout of a set, which mmseg's BaseSegDataset and mmdet's CocoDataset read as it is::

    images/{train,val}/000001.png        RGB; not JPEG, whose decoders differ by machine
    annotations/{train,val}/000001.png   uint8 labels, 0 = unlabelled, k = class k-1
    instances_{train,val}.json           COCO, ids from 1, uncompressed run lengths
    meta.json                            what the set is made of; written last
"""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .canvas import bounding_box
from .shapes import CLASSES, PALETTE, THING_CLASSES, VERSION, Scene, make_scene

SPLITS = ('train', 'val')

Record = dict[str, Any]
Job = tuple[str, int]  # split, number of the picture from 1


def scene_seed(seed: int, split: str, number: int) -> int:
    """The seed of one picture: depends on its place only, never on how many others are made."""
    sequence = np.random.SeedSequence([seed, SPLITS.index(split), number])
    return int(sequence.generate_state(1, np.uint64)[0])


def run_lengths(mask: np.ndarray) -> list[int]:
    """COCO's uncompressed run lengths of a mask: column by column, the first run counts False."""
    flat = mask.ravel(order='F')  # (h, w) -> (h * w)
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    bounds = np.concatenate(([0], edges, [flat.size]))
    runs = [int(n) for n in np.diff(bounds)]
    return [0, *runs] if flat[0] else runs


def write_scene(folder: Path, split: str, number: int, scene: Scene) -> Record:
    """Write one picture and its label map.

    Returns:
        COCO's entries of the picture: ``image``, and ``annotations`` that have no id yet.
    """
    name = f'{number:06d}.png'
    Image.fromarray(scene.image).save(folder / 'images' / split / name, compress_level=3)
    Image.fromarray(scene.label).save(folder / 'annotations' / split / name)
    height, width = scene.label.shape
    annotations = [
        {
            'image_id': number,
            'category_id': THING_CLASSES.index(CLASSES[instance.label - 1]) + 1,
            'segmentation': {'size': [height, width], 'counts': run_lengths(instance.mask)},
            'area': int(instance.mask.sum()),
            'bbox': list(bounding_box(instance.mask)),
            'iscrowd': 0,
        }
        for instance in scene.instances
    ]
    return {
        'image': {'id': number, 'file_name': name, 'height': height, 'width': width},
        'annotations': annotations,
    }


def coco_json(records: list[Record]) -> Record:
    """One split's COCO file; annotation ids start at 1: COCO's scoring takes 0 for no match."""
    annotations = [a for record in records for a in record['annotations']]
    return {
        'info': {'description': 'vit5_dense demo scenes', 'version': str(VERSION)},
        'images': [record['image'] for record in records],
        'annotations': [dict(id=k, **a) for k, a in enumerate(annotations, 1)],
        'categories': [{'id': k, 'name': name} for k, name in enumerate(THING_CLASSES, 1)],
    }


def describe(seed: int, counts: dict[str, int]) -> Record:
    """The content of ``meta.json``: equal descriptions mean equal pixels."""
    return {
        'generator': 'vit5_dense.datasets.shapes',
        'version': VERSION,
        'seed': seed,
        'counts': counts,
        'classes': list(CLASSES),
        'palette': [list(c) for c in PALETTE],
        'thing_classes': list(THING_CLASSES),
    }


def _work(
    folder: Path,
    seed: int,
    jobs: list[Job],
    pipe: Connection,
    parent: int,
    inherited: list[Connection],
) -> None:
    """Body of a worker process: send ``(job, record)`` pairs, or the error that stopped it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent alone answers Ctrl-C
    for receiver in inherited:  # else a send would wait for ever once the parent is gone
        receiver.close()
    try:
        for split, number in jobs:
            if os.getppid() != parent:  # it was killed: nobody waits for the rest
                return
            scene = make_scene(scene_seed(seed, split, number))
            pipe.send(((split, number), write_scene(folder, split, number, scene)))
    except BrokenPipeError:  # the same, found out while sending
        return
    except OSError as error:
        pipe.send(error)


def _records(
    folder: Path, seed: int, jobs: list[Job], workers: int
) -> Iterator[tuple[Job, Record]]:
    """Write the pictures of all jobs and yield their records, in any order."""
    if workers == 1:
        for split, number in jobs:
            scene = make_scene(scene_seed(seed, split, number))
            yield (split, number), write_scene(folder, split, number, scene)
        return
    context = multiprocessing.get_context('fork')
    processes: list[multiprocessing.process.BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for rank in range(workers):
            receiver, sender = context.Pipe(duplex=False)
            pipes.append(receiver)
            mine = jobs[rank::workers]
            process = context.Process(
                target=_work, args=(folder, seed, mine, sender, os.getpid(), pipes), daemon=True
            )
            process.start()
            sender.close()
            processes.append(process)
        left = len(jobs)
        while left:
            ready = wait(pipes)
            for pipe in [p for p in pipes if p in ready]:
                try:
                    answer = pipe.recv()
                except EOFError:  # its jobs are done, or it was killed: the count tells
                    pipes.remove(pipe)
                    if not pipes:
                        raise OSError(
                            f'a worker process ended early, {left} scenes are missing'
                        ) from None
                    continue
                if isinstance(answer, OSError):
                    raise answer
                left -= 1
                yield answer
    finally:
        for worker in processes:
            worker.terminate()
            worker.join()


def write_set(
    folder: Path,
    seed: int,
    counts: dict[str, int],
    workers: int,
    progress: Callable[[int, int], None],
) -> None:
    """Write a whole set into an existing folder, ``meta.json`` last.

    Args:
        folder: Existing and empty.
        seed: Seed of the whole set.
        counts: Pictures per split.
        workers: Processes; the files do not depend on it.
        progress: Called with the number of scenes done and wanted.
    """
    for split in counts:
        (folder / 'images' / split).mkdir(parents=True)
        (folder / 'annotations' / split).mkdir(parents=True)
    jobs = [(split, k) for split, count in counts.items() for k in range(1, count + 1)]
    records: dict[Job, Record] = {}
    for job, record in _records(folder, seed, jobs, max(1, min(workers, len(jobs)))):
        records[job] = record
        progress(len(records), len(jobs))
    for split in counts:
        content = coco_json([records[job] for job in jobs if job[0] == split])
        (folder / f'instances_{split}.json').write_text(json.dumps(content))
    (folder / 'meta.json').write_text(json.dumps(describe(seed, counts), indent=1))
