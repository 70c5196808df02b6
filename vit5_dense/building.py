"""From a config to a runner, with every mistake found as early as it can be."""

import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.dataset import InfiniteSampler
from mmengine.model import BaseModel
from mmengine.registry import DefaultScope
from mmengine.runner import EpochBasedTrainLoop, Runner
from timm.layers import to_2tuple
from torch import nn
from torch.utils.data import DataLoader

from .backbones import ViT5
from .config import describe, fit_machine
from .errors import UserError
from .exact import exact_loader
from .health import require_det, require_seg
from .hooks.exact import ViT5ExactHook
from .necks import SimplePyramid

# Heads of segmentors and detectors that know the classes, one or several of them.
HEAD = re.compile(r'(decode_head|auxiliary_head|bbox_head|mask_head)(\.\d+)?$')


def require_framework(cfg: Config) -> None:
    """Stop with the install line if the config's framework is not usable.

    Raises:
        UserError: If MMSegmentation, or MMDetection with compiled ops, cannot be imported.
    """
    if cfg.get('default_scope') == 'mmdet':
        require_det()
    elif cfg.get('default_scope') == 'mmseg':
        require_seg()


def data_sets(dataset: ConfigDict) -> list[ConfigDict]:
    """A data set and all those within it, if it is ``ConcatDataset`` or another wrapper."""
    inner = [*dataset.get('datasets', []), *filter(None, [dataset.get('dataset')])]
    return [dataset, *(each for one in inner for each in data_sets(one))]


def data_paths(dataset: ConfigDict) -> list[Path]:
    """Folders and files that a data set reads, also within wrappers."""
    paths = []
    for each in data_sets(dataset):
        root, prefixes = each.get('data_root') or '', each.get('data_prefix') or {}
        paths += [Path(root, prefix) for prefix in prefixes.values() if prefix]
        if each.get('ann_file'):
            paths.append(Path(root, each.ann_file))
    return paths


def check_data(cfg: Config, splits: Iterable[str]) -> None:
    """Find missing or empty data folders before a model is built.

    Args:
        cfg: A config with ``<split>_dataloader``; its ``data_help``, if any, tells how to get data.
        splits: 'train', 'val', 'test'.

    Raises:
        UserError: With the folder or file expected and how to get it.
    """
    for split in splits:
        loader = cfg.get(f'{split}_dataloader')
        if not loader:
            continue
        for path in data_paths(loader.dataset):
            empty = path.is_dir() and next(path.iterdir(), None) is None
            if not path.exists() or empty:
                state = 'is empty' if empty else 'does not exist'
                raise UserError(
                    f'{split} data: {path.absolute()} {state}. '
                    + cfg.get(
                        'data_help', f'Set {split}_dataloader.dataset.data_root in the config'
                    )
                )


@contextmanager
def building(cfg: Config) -> Iterator[None]:
    """Whatever a wrong config leads to in any framework, as one message.

    Raises:
        UserError: With the words of what refused the config.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f'config {cfg.filename} cannot be built: {describe(error)}') from error


def build_model(cfg: Config) -> BaseModel:
    """The segmentor or detector of a config alone, in evaluation; no data set or GPU is needed.

    Args:
        cfg: Fitted to this machine in place; ``init_cfg`` of the backbone is dropped.

    Raises:
        UserError: If its framework is missing or refuses the config.
    """
    require_framework(cfg)
    scope = cfg.get('default_scope')
    if scope not in ('mmseg', 'mmdet'):
        raise UserError(f"{cfg.filename}: default_scope {scope!r} must be 'mmseg' or 'mmdet'")
    fit_machine(cfg)
    utils = importlib.import_module(f'{scope}.utils')
    utils.register_all_modules(init_default_scope=False)
    registry = importlib.import_module(f'{scope}.registry')
    DefaultScope.get_instance('vit5_dense', scope_name=scope)
    with DefaultScope.overwrite_default_scope(scope), building(cfg):
        cfg.model.backbone.init_cfg = None
        return registry.MODELS.build(cfg.model).eval()


class SilentRunner(Runner):
    """mmengine's, which writes no copy of the config beside the checkpoints."""

    def dump_config(self) -> None:
        """Leave the file that is there alone; ``<time stamp>/vis_data/config.py`` is a copy."""


def runner_class(cfg: Config, train: bool) -> type[Runner]:
    """The runner that overwrites no config: neither the user's own nor that of a run tested."""
    copy = Path(cfg.work_dir, Path(cfg.filename).name)
    return Runner if train and not (copy.exists() and copy.samefile(cfg.filename)) else SilentRunner


def build_runner(cfg: Config, train: bool) -> Runner:
    """Build mmengine's runner and all that it would build later, from data sets to optimiser.

    Args:
        cfg: The config.
        train: Build what training needs; else what testing needs.

    Raises:
        UserError: With the words of whatever refused the config.
    """
    interval = cfg.get('train_cfg', {}).get('val_interval', 1) if train else 1
    if interval < 1:
        raise UserError(f'train_cfg.val_interval {interval} must be 1 or more')
    with building(cfg):
        runner = runner_class(cfg, train).from_cfg(cfg)
        if train:
            loop = cfg.train_cfg
            if loop.get('type') == 'IterBasedTrainLoop' or loop.get('by_epoch') is False:
                loader = runner.build_dataloader(runner._train_dataloader, runner.seed)
                runner._train_dataloader = exact_loader(loader, runner.seed)
                runner.register_hook(ViT5ExactHook())
            runner.train_loop, runner.val_loop  # noqa: B018  properties that build
            runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        else:
            runner.test_loop  # noqa: B018
    if train:
        check_end(runner)
    check_strides(runner.model)
    check_sizes(cfg)
    check_classes(runner, runner.train_dataloader if train else runner.test_dataloader)
    return runner


def check_end(runner: Runner) -> None:
    """Find an epoch that would never end.

    Raises:
        UserError: If a loop by epochs has a sampler without end.
    """
    endless = isinstance(runner.train_dataloader.sampler, InfiniteSampler)
    if endless and isinstance(runner.train_loop, EpochBasedTrainLoop):
        raise UserError(
            'EpochBasedTrainLoop with InfiniteSampler never ends its first epoch: set '
            'train_dataloader.sampler.type=DefaultSampler, or train_cfg.type=IterBasedTrainLoop '
            'with max_iters'
        )


def check_strides(model: nn.Module) -> None:
    """Compare the stride of the backbone with that which the pyramid was built for.

    Raises:
        UserError: If they differ; with both numbers.
    """
    for module in model.modules():
        backbone, neck = getattr(module, 'backbone', None), getattr(module, 'neck', None)
        necks = neck if isinstance(neck, nn.Sequential) else [neck]
        if not isinstance(backbone, ViT5):
            continue
        for pyramid in necks:
            if isinstance(pyramid, SimplePyramid) and backbone.patch_size != pyramid.in_stride:
                raise UserError(
                    f'the backbone has stride {backbone.patch_size}, the neck was built for '
                    f'{pyramid.in_stride}: set in_stride={backbone.patch_size} of SimplePyramid'
                )


def check_sizes(cfg: Config) -> None:
    """Compare the crop of the training pictures with the size that batches are padded to.

    Raises:
        UserError: If they differ; with both sizes.
    """
    size = (cfg.model.get('data_preprocessor') or {}).get('size')
    dataset = (cfg.get('train_dataloader') or {}).get('dataset') or {}
    steps = [step for each in data_sets(dataset) for step in each.get('pipeline') or ()]
    for step in steps:
        crop = step.get('crop_size')
        is_crop = step.get('type') == 'RandomCrop' and size and crop
        if is_crop and to_2tuple(size) != to_2tuple(crop):
            raise UserError(
                f'RandomCrop cuts {to_2tuple(crop)}, model.data_preprocessor.size is '
                f'{to_2tuple(size)}: '
                'set both to one size (and model.test_cfg.crop_size for slide inference)'
            )


def check_classes(runner: Runner, loader: DataLoader) -> None:
    """Compare the classes of every head that knows them with those of the data set.

    Raises:
        UserError: If they differ; with both numbers.
    """
    classes = (
        loader.dataset.metainfo.get('classes') if hasattr(loader.dataset, 'metainfo') else None
    )
    for name, module in runner.model.named_modules():
        is_head = HEAD.search(name)
        number = getattr(module, 'num_classes', None)
        if classes and is_head and number is not None and number != len(classes):
            raise UserError(
                f'{name}.num_classes is {number}, but the data set has {len(classes)} classes: set '
                f'model.{name.removeprefix("module.")}.num_classes={len(classes)}'
            )
