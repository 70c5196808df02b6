"""Build metadata. Settings of ruff, mypy and pytest are in pyproject.toml."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
VERSIONS = runpy.run_path(str(ROOT / 'vit5_dense' / 'versions.py'))


def package_version() -> str:
    """The version in `vit5_dense/__init__.py`, without importing it: torch may not be there yet."""
    text = (ROOT / 'vit5_dense' / '__init__.py').read_text(encoding='utf-8')
    match = re.search(r"^__version__ = '(.+)'$", text, flags=re.MULTILINE)
    if not match:
        raise SystemExit('vit5_dense/__init__.py has no line __version__ = ...')
    return match[1]


def environment_path() -> list[str]:
    """`sys.path` of the environment that is installed into.

    pip builds in isolation: same interpreter, but a PYTHONPATH that hides site-packages. Without
    that variable a second interpreter sees what the user's does.
    """
    hidden = ('PYTHONPATH', 'PYTHONNOUSERSITE')
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    code = 'import sys; print("\\n".join(sys.path))'
    return subprocess.check_output([sys.executable, '-c', code], env=env, text=True).splitlines()


def openmmlab(*modules: str) -> list[str]:
    """Requirements for some of mmengine, mmcv, mmseg, mmdet that fit what the environment has.

    A wrong requirement is worse than none here: the fork (onedl-*) and upstream write the same
    folders under different distribution names, so pip would install one over the other and call
    both installed. Hence the fork by default, as bare names that any installed version satisfies;
    where upstream is installed, only those of its distributions that are missing; nothing where
    both are. The core names none of them at all: a plain install never brings a second mmengine.
    """
    dists = VERSIONS['installed_distributions'](environment_path())
    if VERSIONS['is_upstream'](dists):
        upstream = {
            'mmengine': 'mmengine>=0.10.7',
            'mmcv': 'mmcv>=2.0.0rc4,<2.2.0',  # the range that mmseg 1.2.2 and mmdet 3.3.0 assert
            'mmseg': 'mmsegmentation>=1.2.2',
            'mmdet': 'mmdet>=3.3.0',
        }
        return [upstream[name] for name in modules if not VERSIONS['owners'](name, dists)]
    if any(len(VERSIONS['owners'](name, dists)) > 1 for name in VERSIONS['FORK']):
        return []
    return [VERSIONS['FORK'][name] for name in modules]


TORCH = ['torch>=2.1', 'timm>=1.0', 'fvcore', 'safetensors']

setup(
    name='vit5_dense',
    version=package_version(),
    description='ViT-5 backbones for dense prediction with MMSegmentation and MMDetection',
    long_description=(ROOT / 'README.md').read_text(encoding='utf-8')
    if (ROOT / 'README.md').is_file()
    else '',
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=['vit5_dense', 'vit5_dense.*']),
    # Links in the repository, for editable installs; real files in a wheel.
    package_data={'vit5_dense': ['.mim/*.txt', '.mim/*.yml', '.mim/configs/**/*.py']},
    # What exported models need beside onnxruntime. All else is in the extras: a machine that only
    # runs them has no torch.
    install_requires=['numpy', 'Pillow>=10.1'],
    extras_require={
        'torch': TORCH,
        # mmseg imports ftfy and regex; upstream does not declare them.
        'seg': [*TORCH, *openmmlab('mmengine', 'mmcv', 'mmseg'), 'ftfy', 'regex'],
        # The compiled ops cannot be asked for here: `python -m vit5_dense` prints their line.
        'det': [*TORCH, *openmmlab('mmengine', 'mmcv', 'mmdet'), 'pycocotools', 'faster-coco-eval'],
        'lora': [*TORCH, 'peft'],  # which brings transformers and accelerate
        'runtime': ['onnxruntime'],
        'export': ['onnx', 'onnxscript', 'onnxruntime'],
        'app': ['gradio>=6'],
        'test': [
            'pytest',
            'pytest-xdist',
            'ruff',
            'mypy',
            'segmentation-models-pytorch',
            'playwright',
        ],
    },
)
