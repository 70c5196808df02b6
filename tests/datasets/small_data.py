"""Small data sets in a folder, and configs of them, for the tests of the checks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from PIL import Image

CLASSES = ('sky', 'road', 'tree')
SEG_STEPS = [{'type': 'LoadImageFromFile'}, {'type': 'LoadAnnotations'}]
DET_STEPS = [
    {'type': 'LoadImageFromFile'},
    {'type': 'LoadAnnotations', 'with_bbox': True, 'with_mask': True},
]


def save_picture(path: Path, seed: int = 0, width: int = 8, height: int = 6) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(noise).save(path)
    return path


def save_mask(path: Path, values: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values)).save(path)
    return path


def good_mask() -> np.ndarray:
    """8x6 pixels: two rows of each class."""
    return np.repeat(np.arange(3, dtype=np.uint8), 16).reshape(6, 8)


def seg_set(root: Path, split: str, number: int = 3, seed: int = 0) -> None:
    """Pictures ``img/SPLIT/0.png`` and label maps ``ann/SPLIT/0.png``, without a fault."""
    for i in range(number):
        save_picture(root / 'img' / split / f'{i}.png', seed + i)
        save_mask(root / 'ann' / split / f'{i}.png', good_mask())


def seg_dataset(root: Path, split: str, **options: Any) -> dict[str, Any]:
    return {
        'type': 'BaseSegDataset',
        'data_root': str(root),
        'data_prefix': {'img_path': f'img/{split}', 'seg_map_path': f'ann/{split}'},
        'img_suffix': '.png',
        'metainfo': {'classes': CLASSES},
        'pipeline': SEG_STEPS,
        **options,
    }


def annotation(number: int = 1, image: int = 1, **changes: Any) -> dict[str, Any]:
    """A 4x4 square at (1, 1) of category 7."""
    return {
        'id': number,
        'image_id': image,
        'category_id': 7,
        'bbox': [1, 1, 4, 4],
        'area': 16,
        'segmentation': [[1, 1, 5, 1, 5, 5, 1, 5]],
        'iscrowd': 0,
        **changes,
    }


def det_set(root: Path, split: str, annotations: Any = None, seed: int = 0, **changes: Any) -> None:
    """Two pictures of 8x6 pixels and ``SPLIT.json`` with the categories dog (7) and cat (3)."""
    images = []
    for i in (1, 2):
        save_picture(root / split / f'{i}.png', seed + i)
        images.append({'id': i, 'file_name': f'{i}.png', 'width': 8, 'height': 6})
    content = {
        'images': images,
        'annotations': annotations or [annotation(), annotation(2, 2, category_id=3)],
        'categories': [{'id': 7, 'name': 'dog'}, {'id': 3, 'name': 'cat'}],
        **changes,
    }
    (root / f'{split}.json').write_text(json.dumps(content))


def det_dataset(root: Path, split: str, **options: Any) -> dict[str, Any]:
    return {
        'type': 'ViT5CocoDataset',
        'data_root': str(root),
        'ann_file': f'{split}.json',
        'data_prefix': {'img': split},
        'metainfo': {'classes': ('cat', 'dog')},
        'pipeline': DET_STEPS,
        **options,
    }


def config(scope: str = 'mmseg', model: Any = None, **datasets: Any) -> Config:
    """A config of data sets by split."""
    loaders = {f'{split}_dataloader': {'dataset': one} for split, one in datasets.items()}
    return Config(
        {'default_scope': scope, 'model': model or {}, **loaders}, filename=str(Path(__file__))
    )
