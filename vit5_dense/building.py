"""From a config to a runner, with every mistake found as early as it can be."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

from .backbones import ViT5
from .config import describe
from .errors import UserError
from .health import require_det, require_seg
from .necks import SimplePyramid


def require_framework(cfg: Config) -> None:
    """Stop with the install line if the config's framework is not usable.

    Raises:
        UserError: If MMSegmentation, or MMDetection with compiled ops, cannot be imported.
    """
    if cfg.get('default_scope') == 'mmdet':
        require_det()
    elif cfg.get('default_scope') == 'mmseg':
        require_seg()


def data_paths(dataset: ConfigDict) -> list[Path]:
    """Folders and files that a data set reads, also within ``ConcatDataset`` and other wrappers."""
    inner = [*dataset.get('datasets', []), *filter(None, [dataset.get('dataset')])]
    paths = [path for each in inner for path in data_paths(each)]
    root = dataset.get('data_root') or ''
    prefixes = dataset.get('data_prefix') or {}
    paths += [Path(root, prefix) for prefix in prefixes.values() if prefix]
    if dataset.get('ann_file'):
        paths.append(Path(root, dataset.ann_file))
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


def build_runner(cfg: Config, train: bool) -> Runner:
    """Build mmengine's runner and all that it would build later, from data sets to optimiser.

    Args:
        cfg: The config.
        train: Build what training needs; else what testing needs.

    Raises:
        UserError: With the words of whatever refused the config.
    """
    with building(cfg):
        runner = Runner.from_cfg(cfg)
        if train:
            runner.train_loop, runner.val_loop  # noqa: B018  properties that build
            runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        else:
            runner.test_loop  # noqa: B018
    check_strides(runner.model)
    check_sizes(cfg)
    check_classes(runner, runner.train_dataloader if train else runner.test_dataloader)
    return runner


def check_strides(model: nn.Module) -> None:
    """Compare the stride of the backbone with that which the pyramid was built for.

    Raises:
        UserError: If they differ; with both numbers.
    """
    for module in model.modules():
        backbone, neck = getattr(module, 'backbone', None), getattr(module, 'neck', None)
        if not (isinstance(backbone, ViT5) and isinstance(neck, SimplePyramid)):
            continue
        if backbone.patch_size != neck.in_stride:
            raise UserError(
                f'the backbone has stride {backbone.patch_size}, the neck was built for '
                f'{neck.in_stride}: set model.neck.in_stride={backbone.patch_size}'
            )


def check_sizes(cfg: Config) -> None:
    """Compare the crop of the training pictures with the size that batches are padded to.

    Raises:
        UserError: If they differ; with both sizes.
    """
    size = (cfg.model.get('data_preprocessor') or {}).get('size')
    dataset = (cfg.get('train_dataloader') or {}).get('dataset') or {}
    for step in dataset.get('pipeline') or ():
        crop = step.get('crop_size')
        if step.get('type') == 'RandomCrop' and size and crop and tuple(size) != tuple(crop):
            raise UserError(
                f'RandomCrop cuts {tuple(crop)}, model.data_preprocessor.size is {tuple(size)}: '
                'set both to one size (and model.test_cfg.crop_size for slide inference)'
            )


def check_classes(runner: Runner, loader: DataLoader) -> None:
    """Compare the classes of every segmentation head with those of the data set.

    Raises:
        UserError: If they differ; with both numbers.
    """
    classes = (
        loader.dataset.metainfo.get('classes') if hasattr(loader.dataset, 'metainfo') else None
    )
    for name, module in runner.model.named_modules():
        is_head = name.endswith('decode_head') or 'auxiliary_head' in name
        number = getattr(module, 'num_classes', None)
        if classes and is_head and number is not None and number != len(classes):
            raise UserError(
                f'{name}.num_classes is {number}, but the data set has {len(classes)} classes: set '
                f'model.{name.removeprefix("module.")}.num_classes={len(classes)}'
            )
