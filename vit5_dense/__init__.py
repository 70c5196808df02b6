"""ViT-5 for dense prediction with MMSegmentation and MMDetection.

Importing the package registers the backbone, the neck and the rest at mmengine's root registries,
where configs of either framework find them, the scheme ``vit5_dense::NAME.py`` for its recipes, and
the models at timm.

Where torch is not installed, what exported models need can be imported: ``vit5_dense.runtime``.
"""

import sys
from typing import Any

from .health import missing_core, require_core

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


def _is_plain() -> bool:
    """Whether Python is locating ``python -m vit5_dense`` or ``python -m vit5_dense.runtime``.

    The health report has to come where torch or mmengine are missing or broken, and exported models
    do without them, so they are not imported then.
    """
    arguments = sys.orig_argv
    if sys.argv[:1] != ['-m']:
        return False
    return arguments[arguments.index('-m') + 1] in (__name__, f'{__name__}.runtime')


if _is_plain() or 'torch' in missing_core():

    def __getattr__(name: str) -> Any:
        if name in __all__:
            require_core()
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

else:
    require_core()

    from . import atomic, timm_models
    from .backbones import ViT5
    from .config_scheme import config_path, register_scheme
    from .hooks import ViT5InterruptHook, ViT5PlainCheckpointHook, ViT5StrictLoadHook
    from .necks import SimplePyramid
    from .optim import ViT5BF16OptimWrapper, ViT5LayerDecayOptimWrapperConstructor

    register_scheme()
