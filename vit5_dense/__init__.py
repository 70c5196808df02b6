"""ViT-5 for dense prediction with MMSegmentation and MMDetection.

Importing the package registers the backbone, the neck and the rest at mmengine's root registries,
where configs of either framework find them, the scheme ``vit5_dense::NAME.py`` for its recipes, and
the models at timm.
"""

import sys

from .health import require_core

__version__ = '0.1.0'

__all__ = [
    'SimplePyramid',
    'ViT5',
    'ViT5BF16OptimWrapper',
    'ViT5InterruptHook',
    'ViT5LayerDecayOptimWrapperConstructor',
    'ViT5PlainCheckpointHook',
    'ViT5StrictLoadHook',
    '__version__',
    'atomic',
    'config_path',
    'timm_models',
]


def _is_report() -> bool:
    """Whether Python is locating ``python -m vit5_dense``, the health report.

    It has to come where torch or mmengine are missing or broken, so they are not imported then.
    """
    arguments = sys.orig_argv
    return sys.argv[:1] == ['-m'] and arguments[arguments.index('-m') + 1] == __name__


if not _is_report():
    require_core()

    from . import atomic, timm_models
    from .backbones import ViT5
    from .config_scheme import config_path, register_scheme
    from .hooks import ViT5InterruptHook, ViT5PlainCheckpointHook, ViT5StrictLoadHook
    from .necks import SimplePyramid
    from .optim import ViT5BF16OptimWrapper, ViT5LayerDecayOptimWrapperConstructor

    register_scheme()
