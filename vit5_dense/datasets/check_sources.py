"""The data sets that a config names, as far as a check can read their files."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mmengine.config import Config, ConfigDict
from mmengine.registry import DefaultScope

from ..building import building, data_sets
from ..errors import UserError

IGNORED = 255  # labels of this value are learnt by no head, unless it is told another
BACKENDS = (None, 'cv2', 'pillow', 'turbojpeg')


class Source(NamedTuple):
    """A data set that reads files itself, as opposed to a wrapper around others.

    Attributes:
        split: 'train', 'val' or 'test'.
        task: 'segmentation' or 'detection'; 'unknown' where the files cannot be checked.
        dataset: The framework's data set with its paths and classes, without its list of pictures;
            None if it is unknown.
        with_masks: Whether its pipeline loads masks of objects.
        own_order: Whether labels follow the order of the annotation file, not that of the classes.
        ignored: Labels that no head learns from.
        decoder: What its pipeline decodes label maps with, one of ``BACKENDS``.
        reason: Why it is unknown.
    """

    split: str
    task: str
    dataset: Any
    with_masks: bool = False
    own_order: bool = False
    ignored: frozenset[int] = frozenset({IGNORED})
    decoder: str = 'pillow'
    reason: str = ''


def steps_of(node: Any) -> Iterator[Mapping[str, Any]]:
    """All steps of a pipeline, also those within other steps."""
    if isinstance(node, Mapping):
        yield node
        node = [value for value in node.values() if isinstance(value, Mapping | list | tuple)]
    for item in node if isinstance(node, list | tuple) else ():
        yield from steps_of(item)


def strange_loader(dataset: ConfigDict) -> str | None:
    """A step of the pipeline that reads files in a way of its own."""
    for step in steps_of(dataset.get('pipeline') or []):
        name = str(step.get('type', '')).rsplit('.', 1)[-1]
        if name.startswith('Load') and name not in ('LoadImageFromFile', 'LoadAnnotations'):
            return name
        if step.get('imdecode_backend') not in BACKENDS:
            return f'{name} with imdecode_backend={step["imdecode_backend"]!r}'
    return None


def mask_decoder(dataset: ConfigDict) -> str:
    """What a pipeline decodes label maps with: mmseg's default is Pillow, mmcv's is OpenCV."""
    for step in steps_of(dataset.get('pipeline') or []):
        if str(step.get('type', '')).rsplit('.', 1)[-1] == 'LoadAnnotations':
            return step.get('imdecode_backend', 'pillow') or 'cv2'
    return 'pillow'


def kind_of(kind: Any, scope: str, ours: Any) -> tuple[str, bool]:
    """Task of a data set's class, and whether its labels follow the order of the file.

    Only classes that find their files by the rules of ``BaseSegDataset`` or ``CocoDataset`` are
    known.

    Args:
        kind: The class.
        scope: 'mmseg' or 'mmdet'.
        ours: ``ViT5CocoDataset``, or None if the config has not imported it.
    """
    if kind is not None and scope == 'mmseg':
        base = importlib.import_module('mmseg.datasets').BaseSegDataset
        if issubclass(kind, base) and kind.load_data_list is base.load_data_list:
            return 'segmentation', False
    if kind is not None and scope == 'mmdet':
        base = importlib.import_module('mmdet.datasets').CocoDataset
        loaders = [one.load_data_list for one in (base, ours) if one]
        if (
            issubclass(kind, base)
            and kind.load_data_list in loaders
            and kind.parse_data_info is base.parse_data_info
        ):
            return 'detection', not (ours and issubclass(kind, ours))
    return 'unknown', False


def ignored_labels(cfg: Config, dataset: Any) -> frozenset[int]:
    """Labels that no head learns from: 255, and what heads and the data set name."""
    found = {IGNORED, dataset.ignore_index}
    for key in ('decode_head', 'auxiliary_head'):
        heads = cfg.model.get(key) or []
        heads = heads if isinstance(heads, list | tuple) else [heads]
        found |= {head.get('ignore_index', IGNORED) for head in heads}
    return frozenset(found)


def find_source(cfg: Config, split: str, dataset: ConfigDict) -> Source:
    """What a check needs to know about one data set; see ``Source``."""
    scope = cfg.get('default_scope')
    if scope not in ('mmseg', 'mmdet'):
        return Source(split, 'unknown', None, reason=f'default_scope {scope!r} is unknown')
    utils = importlib.import_module(f'{scope}.utils')
    utils.register_all_modules(init_default_scope=False)
    registry = importlib.import_module(f'{scope}.registry').DATASETS
    with DefaultScope.overwrite_default_scope(scope), building(cfg):
        kind = dataset.type if isinstance(dataset.type, type) else registry.get(dataset.type)
        task, own_order = kind_of(kind, scope, registry.get('ViT5CocoDataset'))
        name = getattr(kind, '__name__', dataset.type)
        if task == 'unknown':
            return Source(split, task, None, reason=f'{name} is a data set of an unknown kind')
        if loader := strange_loader(dataset):
            return Source(split, 'unknown', None, reason=f'{name} reads its files by {loader}')
        built = registry.build({**dataset, 'pipeline': [], 'lazy_init': True})
    return Source(
        split,
        task,
        built,
        with_masks=any(step.get('with_mask') for step in steps_of(dataset.get('pipeline') or [])),
        own_order=own_order,
        ignored=ignored_labels(cfg, built) if task == 'segmentation' else frozenset(),
        decoder=mask_decoder(dataset),
    )


def find_sources(cfg: Config, split: str) -> list[Source]:
    """The data sets of a split, also those within wrappers.

    Raises:
        UserError: If the config has no such split, or a data set refuses its settings.
    """
    loader = cfg.get(f'{split}_dataloader')
    if not loader:
        raise UserError(f'config {cfg.filename} has no {split}_dataloader')
    leaves = [
        one for one in data_sets(loader.dataset) if not (one.get('dataset') or one.get('datasets'))
    ]
    return [find_source(cfg, split, leaf) for leaf in leaves]


def without_pipeline(node: Any) -> Any:
    """The settings of a data set that decide which files it has."""
    if isinstance(node, Mapping):
        return {
            key: without_pipeline(value)
            for key, value in node.items()
            if key not in ('pipeline', 'test_mode')
        }
    return [without_pipeline(item) for item in node] if isinstance(node, list | tuple) else node
