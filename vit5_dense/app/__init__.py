"""A local web page: drop a picture, look at what a model finds and at what its backbone sees.

``results`` and ``inside`` are plain functions; only ``page`` and the two tabs import gradio.
"""

import importlib
import os

from ..health import MissingDependencyError


def require_gradio() -> None:
    """Stop with the install line if gradio cannot be imported; keep it from calling its makers.

    Raises:
        MissingDependencyError: Says what the import said.
    """
    os.environ['GRADIO_ANALYTICS_ENABLED'] = 'False'  # read when it is imported
    try:
        importlib.import_module('gradio')
    except ImportError as error:
        raise MissingDependencyError(
            f'the app needs gradio, which cannot be imported ({error}). '
            "Run: pip install -c constraints.txt -e '.[app]'"
        ) from error
