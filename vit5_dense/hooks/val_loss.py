"""The loss on the validation pictures."""

from typing import Any

import torch
from mmengine.dist import all_reduce, is_distributed
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor

from .common import unwrapped


def labels_follow_resize(dataset: Any) -> bool:
    """Whether the labels of a data set keep the size of the file while pictures are resized."""
    steps = [type(step).__name__ for step in dataset.pipeline.transforms]
    return 'Resize' in steps[: steps.index('LoadAnnotations')]


def resize_objects(sample: Any, preprocessor: Any) -> None:
    """Boxes and masks of mmdet's sample from the size of the file to that of the input."""
    width, height = sample.scale_factor
    for objects in (sample.gt_instances, sample.get('ignored_instances', {})):
        if 'bboxes' in objects:
            scale = objects.bboxes.new_tensor((width, height, width, height))
            objects.bboxes = objects.bboxes * scale
        if 'masks' in objects:
            objects.masks = objects.masks.resize(sample.img_shape[:2])


def why_not(model: Any, sample: Any, dataset: Any) -> str:
    """What stands against a loss on validation samples like this one; '' if nothing does."""
    if 'gt_sem_seg' in sample:
        padded = getattr(model.data_preprocessor, 'test_cfg', None)
        return 'data_preprocessor.test_cfg pads pictures but not labels' if padded else ''
    if 'bboxes' not in sample.get('gt_instances', {}):
        return 'the validation pipeline loads no annotations (LoadAnnotations)'
    known = 'LoadAnnotations' in [
        type(step).__name__
        for step in getattr(getattr(dataset, 'pipeline', None), 'transforms', ())
    ]
    return '' if known else f'{type(dataset).__name__} has no pipeline to tell the scale of boxes'


@HOOKS.register_module()
class ViT5ValLossHook(Hook):
    """Logs the model's losses on the validation set, as ``val/loss`` and its parts.

    They stand beside the training losses in ``scalars.json`` and in the curves of ``report.png``. A
    loss that falls in training and rises here is the sign of overfitting. The losses are those of
    the whole picture (no sliding window) in evaluation mode: no drop path, running statistics.

    It costs a second pass over the validation set, so no config has it. One line adds it::

        custom_hooks = _base_.custom_hooks + [dict(type='ViT5ValLossHook')]
    """

    def __init__(self) -> None:
        self._said = False
        self._sums: dict[str, Tensor | float] = {}
        self._pictures = 0

    def before_val_epoch(self, runner: Runner) -> None:
        """Start a mean."""
        self._sums, self._pictures = {}, 0

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Add the losses of a batch to the mean."""
        model = unwrapped(runner)
        samples = data_batch.get('data_samples')
        dataset = runner.val_dataloader.dataset
        reason = why_not(model, samples[0], dataset) if samples else 'there are no samples'
        if reason:
            if not self._said:
                print_log(f'No validation loss: {reason}', logger='current')
            self._said = True
            return
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.no_grad(), torch.random.fork_rng(devices):  # training draws as without us
            torch.manual_seed(0)  # detectors sample boxes: the same ones each time
            data = model.data_preprocessor(data_batch, False)
            if 'gt_sem_seg' not in samples[0]:
                for sample in data['data_samples']:
                    if labels_follow_resize(dataset):
                        resize_objects(sample, model.data_preprocessor)
                if model.data_preprocessor.pad_mask:
                    model.data_preprocessor.pad_gt_masks(data['data_samples'])
            _, losses = model.parse_losses(model._run_forward(data, mode='loss'))
        for name, value in losses.items():
            if 'loss' in name:
                self._sums[name] = self._sums.get(name, 0) + value * len(samples)
        self._pictures += len(samples)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Log the means over all pictures of all processes."""
        if not self._sums:
            return
        total = torch.stack([torch.as_tensor(value).float() for value in self._sums.values()])
        total = torch.cat((total, total.new_tensor([self._pictures])))
        if is_distributed():
            all_reduce(total)
        means = (total[:-1] / total[-1]).tolist()
        scalars = {f'val/{name}': mean for name, mean in zip(self._sums, means, strict=True)}
        runner.visualizer.add_scalars(scalars, step=runner.iter)
        text = ', '.join(f'{name} {value:.4f}' for name, value in scalars.items())
        print_log(f'Validation losses: {text}', logger='current')
