"""Files that a user may hand to a tool by mistake, of every kind that the tools read."""

import json
import pickle
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save
from torch import nn

from tiny_run import Run

LONG = 'x' * 300  # longer than a file system takes
#: Configs: their text and a piece of the message.
CONFIGS: dict[str, tuple[bytes, str]] = {
    'cut.py': (b'model = dict(\n', 'SyntaxError'),
    'binary.py': (b'\x00\xff\xfe' * 9, 'cannot be read'),
    'fails.py': (b'x = 1 / 0\n', 'ZeroDivisionError'),
    'no_base.py': (b"_base_ = 'nowhere.py'\n", 'nowhere.py'),
    'no_recipe.py': (b"_base_ = 'vit5_dense::nope.py'\n", 'no config'),
    'empty.py': (b'', 'has no model'),
    'list.json': (b'[1, 2]', 'cannot be read'),
    'notes.txt': (b'model = dict()\n', 'notes.txt'),
}
#: Checkpoints that no tool takes, and a piece of the message.
CHECKPOINTS = {
    'empty.pth': 'fetch it again',
    'page.pth': 'fetch it again',
    'cut.pth': 'broken or cut short',
    'cut.safetensors': 'broken or cut short',
    'header.safetensors': 'broken or cut short',
    'code.pth': 'not loaded',
    'pickle.pth': 'pickle.pth',
    'list.pth': 'holds a list',
    'bomb.pth': 'broken or cut short',
    'numbers.pth': 'numbers.pth',
    'states.pth': 'states.pth',
    'folder.pth': 'folder.pth',
    'absent.pth': 'absent.pth',
    f'{LONG}.pth': LONG,
}
#: Pictures that cannot be read whole.
PICTURES = ('text.png', 'empty.png', 'cut.jpg', 'cut.png', 'huge.png', 'float.tif', 'page.pth')
#: Changes of one label map, and a piece of the message.
MASKS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    'range': (lambda mask: mask.clip(99), '99'),
    'colours': (lambda mask: np.stack([mask] * 3, 2), 'channels'),
    'size': (lambda mask: mask[:-7], 'the picture'),
    'deep': (lambda mask: mask.astype(np.uint16) + 300, 'as 8 bits'),
    'cut': (lambda mask: mask, 'cannot be read'),
}
#: Changes of an annotation file, and a piece of the message.
ANNOTATIONS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    'a list': (lambda content: [], "no list 'images'"),
    'no pictures': (lambda content: content.pop('images'), "no list 'images'"),
    'id 0': (lambda content: content['annotations'][0].update(id=0), 'from 1'),
    'a box of text': (lambda content: content['annotations'][0].update(bbox='1 2'), 'bbox'),
    'a box inside out': (
        lambda content: content['annotations'][0].update(bbox=[1, 1, -4, 4]),
        'bbox',
    ),
    'an unknown picture': (
        lambda content: content['annotations'][0].update(image_id=0),
        'image_id',
    ),
    'no mask': (lambda content: content['annotations'][0].pop('segmentation'), 'segmentation'),
    'other names': (lambda content: content['categories'][0].update(name='yeti'), 'metainfo'),
    'crowds': (
        lambda content: [entry.update(iscrowd=1) for entry in content['annotations']],
        'crowd',
    ),
    'no objects': (lambda content: content['annotations'].clear(), 'nothing to learn'),
}


class Code:
    """Unpickling it calls a function."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return print, ('this code must not run',)


def write_checkpoints(folder: Path) -> None:
    """The files of ``CHECKPOINTS``, and whole ones of another model."""
    state = {'a': torch.ones(500)}
    contents = {
        'whole.pth': state,
        'code.pth': {'state_dict': state, 'meta': Code()},
        'list.pth': [torch.ones(2)],
        'numbers.pth': {1: torch.ones(2), 'state_dict': {2: torch.ones(2)}},
        'states.pth': {'state_dict': [torch.ones(2)], 'model': 'text', 'meta': 'text'},
        'text_meta.pth': {'state_dict': state, 'meta': 'text'},
        'no_state.pth': {'state_dict': {}, 'meta': {}},
        'resnet.pth': {
            'state_dict': nn.Sequential(nn.Conv2d(3, 8, 7), nn.BatchNorm2d(8)).state_dict()
        },
    }
    for name, content in contents.items():
        torch.save(content, folder / name)
    tensors = save(state)
    (length,) = struct.unpack('<Q', tensors[:8])
    header = b'{"a":{"dtype":"F32","shape":[9999],"data_offsets":[0,2000]}}'.ljust(length)
    texts = {
        'empty.pth': b'',
        'page.pth': b'<!DOCTYPE html><html>404</html>',
        'cut.pth': (folder / 'whole.pth').read_bytes()[:-700],
        'cut.safetensors': tensors[:-9],
        'header.safetensors': struct.pack('<Q', len(header)) + header + tensors[8 + length :],
        'pickle.pth': pickle.dumps({'a': 1}, protocol=2),
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    with zipfile.ZipFile(folder / 'bomb.pth', 'w', zipfile.ZIP_DEFLATED) as archive:
        for name in ('data.pkl', 'data/0'):
            archive.writestr(f'bomb/{name}', bytes(2**26))
    (folder / 'folder.pth').mkdir()


def png_head(width: int, height: int) -> bytes:
    """The begin of a PNG that claims a size."""
    body = b'IHDR' + struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    crc = struct.pack('>I', zlib.crc32(body))
    return b'\x89PNG\r\n\x1a\n' + struct.pack('>I', 13) + body + crc


def write_pictures(folder: Path) -> None:
    """The files of ``PICTURES``, two pictures of one long name, and places that are taken."""
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    for suffix in ('png', 'jpg'):
        whole = folder / f'whole.{suffix}'
        Image.fromarray(noise).save(whole)
        (folder / f'cut.{suffix}').write_bytes(whole.read_bytes()[:-600])
    (folder / 'text.png').write_text('no picture')
    (folder / 'empty.png').touch()
    (folder / 'huge.png').write_bytes(png_head(200_000, 200_000))
    Image.fromarray(noise[..., 0].astype(np.float32)).save(folder / 'float.tif')
    for name in ('bare', 'a', 'b', 'taken/scores.json', 'taken/results.json', 'masks'):
        (folder / name).mkdir(parents=True)
    for name in ('a', 'b'):
        shutil.copy(folder / 'whole.png', folder / name / f'{"n" * 250}.png')
    for name in ('train/a', 'train/b', 'val/a', 'val/b'):
        (folder / 'classes' / name).mkdir(parents=True)
        shutil.copy(folder / 'whole.png', folder / 'classes' / name)
    (folder / 'taken' / 'labels').touch()
    shutil.copy(folder / 'whole.png', folder / 'masks')
    for name, text in {'colors': '{"a": [1, 2, 3]}', 'form': '{"a": [1, 2]}', 'no': 'a'}.items():
        (folder / f'{name}.json').write_text(text)


def write_data(folder: Path, data: Path) -> None:
    """Data sets with a fault each: by ``MASKS`` in ``mask_*``, by ``ANNOTATIONS`` in ``*.json``."""
    for kind, (change, _) in MASKS.items():
        shutil.copytree(data, folder / f'mask_{kind}')
        path = sorted((folder / f'mask_{kind}' / 'annotations' / 'train').iterdir())[0]
        Image.fromarray(change(np.asarray(Image.open(path)))).save(path)
        if kind == 'cut':
            path.write_bytes(path.read_bytes()[:-60])
    whole = (data / 'instances_train.json').read_text()
    for kind, (damage, _) in ANNOTATIONS.items():
        content = json.loads(whole)
        result = damage(content)
        path = folder / f'{kind.replace(" ", "_")}.json'
        path.write_text(json.dumps([] if result == [] else content))


def write_all(folder: Path, run: Run) -> Path:
    """All of them."""
    for name, (text, _) in CONFIGS.items():
        (folder / name).write_bytes(text)
    write_checkpoints(folder)
    write_pictures(folder)
    write_data(folder, run.data)
    return folder
