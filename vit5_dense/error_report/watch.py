"""From a runner to the report of its test."""

from pathlib import Path
from typing import Any

import numpy as np
from mmengine.runner import Runner

from ..config import describe
from ..errors import UserError
from ..inference import random_palette
from ..instances import from_mmdet
from .collect import WORST, ErrorHook
from .files import NO_PICTURES
from .objects import ObjectErrors
from .pixels import PixelErrors

NO_LABELS = (
    '--report compares with labels, and the test pipeline loads none: put LoadAnnotations before '
    'PackSegInputs or PackDetInputs'
)


def first_with_objects(dataset: Any) -> int:
    """Number of the first picture that has objects.

    Raises:
        UserError: If none has.
    """
    for number in range(len(dataset)):
        objects = dataset.get_data_info(number).get('instances', ())
        if any(not one.get('ignore_flag') for one in objects):
            return number
    raise UserError('--report compares with labels, and the test set has no objects')


def load_sample(dataset: Any, number: int) -> Any:
    """A picture's data sample, as the test pipeline makes it; with --tta the first of several.

    Raises:
        UserError: If its labels are not there, or it does not know its file.
    """
    try:
        samples = dataset[number]['data_samples']
    except (KeyError, OSError) as error:
        raise UserError(
            '--report compares with labels, and those of the test set cannot be loaded: '
            f'{describe(error)}. Set test_dataloader.dataset to pictures with labels'
        ) from error
    sample = samples[0] if isinstance(samples, list) else samples
    if 'img_path' not in sample:
        raise UserError('--report shows pictures: add img_path to meta_keys of the test pipeline')
    return sample


def check_pixels(dataset: Any) -> None:
    """Find out before a run whether there are label maps to compare with.

    Raises:
        UserError: If there are none.
    """
    if 'gt_sem_seg' not in load_sample(dataset, 0):
        raise UserError(NO_LABELS)


def check_objects(dataset: Any) -> None:
    """Find out before a run whether there are objects to compare with, where the picture has them.

    Raises:
        UserError: If there are none, or the pipeline moves them.
    """
    number = first_with_objects(dataset)
    sample = load_sample(dataset, number)
    if 'bboxes' not in sample.get('gt_instances', {}):
        raise UserError(NO_LABELS)
    labelled = np.array([one['bbox'] for one in dataset.get_data_info(number)['instances']])
    for box in from_mmdet(sample.gt_instances).boxes:
        if np.abs(labelled - box).max(axis=1).min() > 0.5:
            raise UserError(
                '--report compares boxes in the pixels of the picture file, and the test pipeline '
                'moves the labelled ones: put LoadAnnotations after Resize and RandomFlip'
            )


def watch_errors(runner: Runner, out: Path, number: float = WORST) -> ErrorHook:
    """Have a runner's test counted for a report; ``write_report`` writes what is returned.

    Args:
        runner: Before its test.
        out: Folder of the report, which is there.
        number: Of pictures that are shown.

    Raises:
        UserError: If the test set has no pictures or no labels.
    """
    dataset = runner.test_dataloader.dataset
    if not len(dataset):
        raise UserError(NO_PICTURES)
    is_detector = runner.cfg.get('default_scope') == 'mmdet'
    (check_objects if is_detector else check_pixels)(dataset)
    classes = dataset.metainfo['classes']
    palette = dataset.metainfo.get('palette') or random_palette(len(classes))
    if is_detector:
        hook: ErrorHook = ObjectErrors(classes, palette, number, out)
    else:
        metrics = runner.test_evaluator.metrics
        ignored = next((m.ignore_index for m in metrics if hasattr(m, 'ignore_index')), 255)
        hook = PixelErrors(classes, palette, ignored, number, out)
    runner.register_hook(hook)
    return hook
