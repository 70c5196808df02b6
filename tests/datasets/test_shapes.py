import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit5_dense.datasets import shapes_files
from vit5_dense.datasets.canvas import Canvas, bounding_box
from vit5_dense.datasets.shapes import CLASSES, PALETTE, THING_CLASSES, Scene, make_scene
from vit5_dense.datasets.textures import Sprite


@pytest.fixture(scope='module')
def scenes() -> list[Scene]:
    return [make_scene(seed) for seed in range(60)]


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small set on disk, several things in most pictures."""
    path = tmp_path_factory.mktemp('shapes')
    shapes_files.write_set(path, 0, {'train': 12, 'val': 5}, 1, lambda done, total: None)
    return path


def decode(segmentation: dict) -> np.ndarray:
    """COCO's uncompressed run lengths, written out pixel by pixel."""
    flat: list[int] = []
    for k, run in enumerate(segmentation['counts']):
        flat += [k % 2] * run
    height, width = segmentation['size']
    return np.array([[flat[c * height + r] for c in range(width)] for r in range(height)], bool)


def test_same_bytes_on_every_machine() -> None:
    # taken with numpy 2.4 and equal under numpy 1.26, with and without AVX2; change it with VERSION
    scene = make_scene(3)
    digest = hashlib.sha256(scene.image.tobytes() + scene.label.tobytes()).hexdigest()
    assert scene.image.shape == (160, 160, 3)
    assert digest.startswith('ec656ae5b0110267')


def test_a_seed_gives_its_own_scene(scenes: list[Scene]) -> None:
    again = make_scene(7)
    np.testing.assert_array_equal(again.image, scenes[7].image)
    np.testing.assert_array_equal(again.label, scenes[7].label)
    assert len({scene.image.tobytes() for scene in scenes}) == 60


def test_tables_name_each_class_once() -> None:
    assert CLASSES == (
        'sky',
        'grass',
        'road',
        'water',
        'building',
        'tree',
        'ball',
        'box',
        'star',
        'car',
        'cone',
        'balloon',
    )
    assert CLASSES[6:] == THING_CLASSES
    assert len(set(PALETTE)) == len(PALETTE) == 12


def test_pictures_are_rgb_bytes_of_a_few_sizes(scenes: list[Scene]) -> None:
    sizes = Counter(scene.label.shape for scene in scenes)
    assert set(sizes) == {(160, 160), (128, 224), (224, 144)}
    assert sizes[160, 160] > 40
    for scene in scenes:
        assert scene.image.shape == (*scene.label.shape, 3)
        assert scene.image.dtype == scene.label.dtype == np.uint8


def test_every_class_has_its_share_of_pixels(scenes: list[Scene]) -> None:
    labels = np.concatenate([scene.label.ravel() for scene in scenes])
    share = np.array([(labels == k).mean() for k in range(14)])
    assert share[1:13].min() > 0.015, dict(zip(CLASSES, share[1:13].round(4), strict=False))
    assert 0.001 < share[0] < 0.02  # unlabelled: there, but little
    assert share[13] == 0


def test_things_own_exactly_the_pixels_of_their_class(scenes: list[Scene]) -> None:
    for scene in scenes:
        owned = np.zeros(scene.label.shape, int)
        for instance in scene.instances:
            assert set(np.unique(scene.label[instance.mask])) == {instance.label}
            assert CLASSES[instance.label - 1] in THING_CLASSES
            owned += instance.mask
        np.testing.assert_array_equal(owned, (scene.label > 6).astype(int))


def test_what_is_seen_of_a_thing_is_two_patches_wide(scenes: list[Scene]) -> None:
    things = [instance for scene in scenes for instance in scene.instances]
    assert len(things) > 120
    for thing in things:
        rows, cols = np.nonzero(thing.mask)
        assert np.ptp(rows) + 1 >= 32
        assert np.ptp(cols) + 1 >= 32
        assert len(rows) >= 400


def test_scenes_differ_in_what_they_hold(scenes: list[Scene]) -> None:
    names = [[instance.label for instance in scene.instances] for scene in scenes]
    assert any(not n for n in names)
    assert any(len(set(n)) < len(n) for n in names)  # two of a class
    assert max(len(n) for n in names) >= 5


def test_a_thing_that_hides_too_much_is_not_placed() -> None:
    canvas = Canvas(64, 96)
    square = Sprite(np.ones((3, 40, 40), np.float32), np.ones((40, 40), np.float32))
    assert canvas.place(square, 50, 30, 7)
    assert not canvas.place(square, 50, 40, 8)  # would leave 10 of 40 columns
    assert len(canvas.instances) == 1
    assert not (canvas.label == 8).any()
    assert not canvas.place(square, 71, 74, 8)  # 33 of 40 rows inside
    assert canvas.place(square, 64, 62, 8)  # corner only
    assert [int(i.mask.sum()) for i in canvas.instances] == [1600 - 8 * 26, 1600]


def test_bounding_box() -> None:
    mask = np.zeros((6, 9), bool)
    assert bounding_box(mask) == (0, 0, 0, 0)
    mask[2, 3] = mask[4, 7] = True
    assert bounding_box(mask) == (3, 2, 5, 3)


@pytest.mark.parametrize(
    ('mask', 'runs'),
    [
        ([[0, 1, 0], [1, 1, 0]], [1, 3, 2]),
        ([[1, 0], [1, 0]], [0, 2, 2]),
        ([[0, 0]], [2]),
        ([[1]], [0, 1]),
    ],
)
def test_run_lengths_go_down_the_columns(mask: list, runs: list[int]) -> None:
    assert shapes_files.run_lengths(np.array(mask, bool)) == runs


@pytest.mark.parametrize(('split', 'count'), [('train', 12), ('val', 5)])
def test_files_agree_with_each_other(folder: Path, split: str, count: int) -> None:
    content = json.loads((folder / f'instances_{split}.json').read_text())
    names = {c['id']: c['name'] for c in content['categories']}
    assert names == dict(enumerate(THING_CLASSES, 1))
    assert [i['id'] for i in content['images']] == list(range(1, count + 1))
    assert [a['id'] for a in content['annotations']] == list(
        range(1, len(content['annotations']) + 1)
    )
    assert len(content['annotations']) > count
    for entry in content['images']:
        image = Image.open(folder / 'images' / split / entry['file_name'])
        label = Image.open(folder / 'annotations' / split / entry['file_name'])
        assert (image.mode, label.mode) == ('RGB', 'L')
        assert image.size == label.size == (entry['width'], entry['height'])
        labels = np.asarray(label)
        owned = np.zeros(labels.shape, bool)
        for a in content['annotations']:
            if a['image_id'] != entry['id']:
                continue
            mask = decode(a['segmentation'])
            rows, cols = np.nonzero(mask)
            assert set(np.unique(labels[mask])) == {CLASSES.index(names[a['category_id']]) + 1}
            assert a['area'] == len(rows)
            assert a['iscrowd'] == 0
            assert a['bbox'] == [min(cols), min(rows), np.ptp(cols) + 1, np.ptp(rows) + 1]
            owned |= mask
        np.testing.assert_array_equal(owned, labels > 6)


def test_a_picture_depends_on_its_place_only(folder: Path, tmp_path: Path) -> None:
    shapes_files.write_set(tmp_path, 0, {'train': 2, 'val': 1}, 1, lambda done, total: None)
    for name in (
        'images/train/000002.png',
        'images/val/000001.png',
        'annotations/train/000001.png',
    ):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    places = [(split, k) for split in ('train', 'val') for k in range(1, 1101)]
    assert len({shapes_files.scene_seed(s, *place) for s in (0, 1) for place in places}) == 4400


def test_no_picture_is_in_both_splits(folder: Path) -> None:
    pictures = [path.read_bytes() for path in folder.glob('images/*/*.png')]
    assert len(set(pictures)) == len(pictures) == 17


def test_meta_tells_what_the_set_is_made_of(folder: Path) -> None:
    meta = json.loads((folder / 'meta.json').read_text())
    assert meta['seed'] == 0
    assert meta['counts'] == {'train': 12, 'val': 5}
    assert tuple(meta['classes']) == CLASSES
    assert tuple(meta['thing_classes']) == THING_CLASSES
    assert tuple(map(tuple, meta['palette'])) == PALETTE
