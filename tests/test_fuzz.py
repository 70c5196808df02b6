"""Damaged files: each loads as what it should be, or is refused by the one error of its reader."""

import contextlib
import copy
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor

from vit5_dense import ViT5
from vit5_dense.checkpoint import CheckpointError, load_pretrained, load_trained
from vit5_dense.checkpoint_io import read_file
from vit5_dense.convert import convert_file
from vit5_dense.datasets.check_objects import plan_objects
from vit5_dense.datasets.check_pictures import drawn
from vit5_dense.datasets.check_report import Part
from vit5_dense.datasets.check_sources import Source
from vit5_dense.datasets.coco_annotations import (
    AnnotationError,
    category_ids,
    check_masks,
    check_objects,
    read_annotations,
)

Random = np.random.Generator
ARCH = {'embed_dims': 8, 'depth': 1, 'num_heads': 1}
FILES = 500
ANNOTATIONS = 200
SECONDS = 20  # for all files together
#: A file of two pictures and two objects, one by polygons and one by run lengths.
COCO: dict[str, Any] = {
    'images': [{'id': i, 'file_name': f'{i}.jpg', 'height': 6, 'width': 8} for i in (1, 2)],
    'annotations': [
        {'id': i, 'image_id': i, 'category_id': 3, 'bbox': [1, 1, 4, 4.5], 'area': 9, 'iscrowd': 0}
        | {'segmentation': [[1, 1, 5, 1, 5, 5]] if i == 1 else {'counts': [9, 39], 'size': [6, 8]}}
        for i in (1, 2)
    ],
    'categories': [{'id': 3, 'name': 'dog'}, {'id': 5, 'name': 'cat'}],
}
#: What stands in the place of another value.
STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 10**30, float('nan'), float('inf'), '', 'dog', '\x00', '\ud800'),
    *([], [[]], [None], {}, {'id': 1}, {'counts': 'x', 'size': [6, 8]}),
    *([['a'] * 8], [[float('nan')] * 6], [[1, 1, 10**400, 1, 5, 5]], [[900, 9, 990, 9, 990, 99]]),
    *({'counts': counts, 'size': [6, 8]} for counts in ('', '`1', [10, 20], [10, -20, 58], ['a'])),
)


def flip(data: bytearray, random: Random) -> bytearray:
    """Change some bits, half the times near one end, where formats keep their tables."""
    for _ in range(random.integers(1, 9)):
        near = min(len(data), 300) if random.random() < 0.5 else len(data)
        place = int(random.integers(near))
        place = place if random.random() < 0.5 else len(data) - 1 - place
        data[place] ^= 1 << int(random.integers(8))
    return data


def cut(data: bytearray, random: Random) -> bytearray:
    """Lose the end."""
    return data[: random.integers(len(data))]


def drop(data: bytearray, random: Random) -> bytearray:
    """Lose a piece."""
    start = random.integers(len(data))
    return data[:start] + data[start + random.integers(1, 100) :]


def repeat(data: bytearray, random: Random) -> bytearray:
    """Have a piece twice."""
    start = random.integers(len(data))
    stop = start + random.integers(1, 100)
    return data[:stop] + data[start:]


def blank(data: bytearray, random: Random) -> bytearray:
    """Have zeros, ones or noise in a piece, as after a bad sector."""
    start = int(random.integers(len(data)))
    length = min(int(random.integers(1, 200)), len(data) - start)
    piece = (bytes(length), b'\xff' * length, random.bytes(length))[random.integers(3)]
    return data[:start] + piece + data[start + length :]


MUTATIONS: tuple[Callable[[bytearray, Random], bytearray], ...] = (flip, cut, drop, repeat, blank)


def damaged(sources: list[bytes], random: Random) -> bytes:
    """One of some files, damaged in one or two ways, or the head of one on the tail of another."""
    first, second = (bytearray(sources[i]) for i in random.integers(len(sources), size=2))
    if random.random() < 0.2:
        return bytes(first[: random.integers(len(first))] + second[random.integers(len(second)) :])
    for i in random.integers(len(MUTATIONS), size=random.integers(1, 3)):
        first = MUTATIONS[i](first, random) or bytearray(b'\0')
    return bytes(first)


def outcomes(attempt: Callable[[bytes], str], files: list[bytes]) -> Counter[str]:
    """How often each outcome came, the kinds of errors included; it may take ``SECONDS``."""
    counts: Counter[str] = Counter()
    start = time.monotonic()
    for number, content in enumerate(files):
        try:
            counts[attempt(content)] += 1
        except BaseException as error:  # a Rust panic is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            counts[f'file {number}: {type(error).__name__}: {error}'] += 1
    assert time.monotonic() - start < SECONDS
    return counts


@pytest.mark.filterwarnings('ignore')  # of torch, on types that it does not expect
def test_a_damaged_checkpoint_loads_or_is_refused(tmp_path: Path) -> None:
    """From random weights; a bit of a weight itself may be another, which no format notices."""
    model = ViT5(ARCH, pretrain_img_size=32, out_indices=(0,))
    state, path = model.state_dict(), tmp_path / 'model.pth'
    shapes = {key: (value.shape, value.dtype) for key, value in state.items()}
    sources = [save(state)]
    for content, zipped in ((state, True), ({'model': state, 'epoch': 3}, False)):
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        sources.append(path.read_bytes())

    def attempt(content: bytes) -> str:
        path.write_bytes(content)
        before: dict[str, Tensor] = {key: value.clone() for key, value in state.items()}
        with contextlib.suppress(CheckpointError):
            convert_file(path)
        try:
            load_pretrained(model, str(path))
        except CheckpointError as error:
            intact = all(before[key].equal(value) for key, value in model.state_dict().items())
            return 'refused' if intact and str(path) in str(error) else f'no good: {error}'
        found = {key: (value.shape, value.dtype) for key, value in model.state_dict().items()}
        assert found == shapes
        model.load_state_dict(before)
        return 'loaded'

    for content in sources:
        assert attempt(content) == 'loaded'
    random = np.random.default_rng(0)
    counts = outcomes(attempt, [damaged(sources, random) for _ in range(FILES)])
    assert set(counts) == {'loaded', 'refused'}
    assert counts['refused'] > FILES / 2


def endless(*keys: str) -> dict[str, Any]:
    """A dict that holds itself."""
    content: dict[str, Any] = {}
    inner = content
    for key in keys:
        inner[key] = {} if key != keys[-1] else content
        inner = inner[key]
    return content


@pytest.mark.parametrize(
    'content',
    [
        {1: torch.ones(2), ('a', 2): torch.ones(1)},
        {'model': {3: torch.ones(2)}},
        {'state_dict': [torch.ones(2)]},
        {'state_dict': None, 'meta': 'text'},
        {},
        endless('model'),
        endless('model_ema', 'state_dict'),
    ],
    ids=lambda content: str(content)[:40],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, content: dict[Any, Any]) -> None:
    torch.save(content, tmp_path / 'other.pth')
    assert read_file(tmp_path / 'other.pth').keys() == content.keys()
    model = ViT5(ARCH, 32, out_indices=(0,))
    with pytest.raises(CheckpointError, match=r'other\.pth'):
        load_pretrained(model, str(tmp_path / 'other.pth'))
    with pytest.raises(CheckpointError, match=r'other\.pth'):
        load_trained(model, tmp_path / 'other.pth')
    with pytest.raises(CheckpointError, match=r'other\.pth'):
        convert_file(tmp_path / 'other.pth')


@pytest.mark.filterwarnings('ignore')  # of torch, on its unfinished kinds
@pytest.mark.parametrize(
    ('change', 'kind'),
    [
        (lambda value: value.to('meta'), 'no plain tensor'),
        (lambda value: value.to_sparse(), 'no plain tensor'),
        (lambda value: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8), 'no plain tensor'),
        (lambda value: value.to(torch.complex64), 'torch.complex64'),
        (lambda value: value.to(torch.int8), 'torch.int8'),
    ],
    ids=['meta', 'sparse', 'quantised', 'complex', 'whole numbers'],
)
def test_a_tensor_of_another_kind_is_named(
    tmp_path: Path, change: Callable[[Tensor], Tensor], kind: str
) -> None:
    model, path = ViT5(ARCH, 32, out_indices=(0,)), tmp_path / 'kind.pth'
    torch.save({**model.state_dict(), 'pos_embed': change(model.pos_embed.detach())}, path)
    for load in (lambda: load_pretrained(model, str(path)), lambda: load_trained(model, path)):
        with pytest.raises(CheckpointError, match=f'misshapen: pos_embed is {kind}'):
            load()


def nodes(content: Any) -> list[tuple[Any, Any]]:
    """Every container of a JSON tree with each of its keys or places."""
    if not isinstance(content, dict | list):
        return []
    own = [*content] if isinstance(content, dict) else [*range(len(content))]
    return [(content, key) for key in own] + [at for key in own for at in nodes(content[key])]


def strange_annotations(random: Random) -> bytes:
    """A COCO file in which one to three values are gone, strange, or those of another place."""
    content = copy.deepcopy(COCO)
    for _ in range(random.integers(1, 4)):
        places = nodes(content)
        if not places:
            break
        container, key = places[random.integers(len(places))]
        choice = random.integers(len(STRANGE) + 6)
        if choice < len(STRANGE):
            container[key] = copy.deepcopy(STRANGE[choice])
        elif choice < len(STRANGE) + 3:
            del container[key]
        else:
            other, at = places[random.integers(len(places))]
            container[key] = copy.deepcopy(other[at])
    return json.dumps(content).encode()


def test_damaged_annotations_are_read_or_refused(tmp_path: Path) -> None:
    path, random = tmp_path / 'instances.json', np.random.default_rng(0)

    def attempt(content: bytes) -> str:
        path.write_bytes(content)
        try:
            found = read_annotations(path)
            ids = category_ids(found, ('cat', 'dog'), path)
            check_masks(found, path)
            check_objects(found, ids, path)
        except AnnotationError as error:
            return 'refused' if str(path) in str(error) else f'no name: {error}'
        assert set(ids) <= {entry['id'] for entry in found['categories']}
        return 'read'

    whole = json.dumps(COCO).encode()
    assert attempt(whole) == 'read'
    files = [strange_annotations(random) for _ in range(ANNOTATIONS // 2)]
    files += [damaged([whole], random) for _ in range(ANNOTATIONS - len(files))]
    counts = outcomes(attempt, files)
    assert set(counts) == {'read', 'refused'}
    assert counts['refused'] > ANNOTATIONS / 2


def test_damaged_annotations_have_faults_and_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip('pycocotools')
    path, random = tmp_path / 'instances.json', np.random.default_rng(0)
    for number in (1, 2):
        Image.new('RGB', (8, 6)).save(tmp_path / f'{number}.jpg')
    dataset = SimpleNamespace(
        ann_file=str(path),
        metainfo={'classes': ('dog',)},
        data_prefix={'img': str(tmp_path)},
        test_mode=False,
    )

    def attempt(content: bytes) -> str:
        path.write_bytes(content)
        plan = plan_objects(Source('train', 'detection', dataset, with_masks=True), quick=False)
        found = [fault for job in plan.jobs for fault in plan.look(job).faults]
        pictures = [*drawn(Part('train', plans=[plan]), 1)]
        assert len(pictures) == min(1, len(plan.jobs))
        return 'faults' if plan.faults or found else 'good'

    assert attempt(json.dumps(COCO).encode()) == 'good'
    counts = outcomes(attempt, [strange_annotations(random) for _ in range(ANNOTATIONS)])
    assert set(counts) == {'faults', 'good'}
    assert counts['faults'] > ANNOTATIONS / 2
