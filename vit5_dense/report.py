"""The picture of a training run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from mmengine.runner import Runner
from PIL import Image

from .errors import UserError
from .instance_pictures import draw_instances
from .instances import from_mmdet
from .pictures import overlay

matplotlib.use('agg')  # files only: works without a display
import matplotlib.pyplot as plt

SCORES = (
    *('mIoU', 'mAcc', 'aAcc'),
    *(f'coco/{kind}_{figure}' for kind in ('bbox', 'segm') for figure in ('mAP', 'mAP_50')),
)
SHOWN_SCORE = 0.5  # objects less certain are left out of the report's pictures
Curve = tuple[list[float], list[float]]


def read_curves(work_dir: Path) -> dict[str, Curve]:
    """Curves of all runs logged in a work directory; of a resumed run the later value counts.

    Args:
        work_dir: Folder of a run, with ``<time stamp>/vis_data/scalars.json``.

    Returns:
        Name to iterations and values, for every number that was logged.
    """
    values: dict[str, dict[float, float]] = {}
    for file in sorted(work_dir.glob('*/vis_data/scalars.json')):
        lines = file.read_text().splitlines()
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                if number == len(lines):  # cut off when the run was killed
                    break
                raise
            for name, value in row.items():
                if name != 'step' and isinstance(value, int | float):
                    values.setdefault(name, {})[row['step']] = value
    return {name: (sorted(v), [v[x] for x in sorted(v)]) for name, v in values.items()}


def write_report(
    work_dir: Path, title: str, pictures: Sequence[tuple[str, np.ndarray]] = ()
) -> Path:
    """Draw losses, scores, learning rate and example pictures of a run to ``report.png``.

    Args:
        work_dir: Folder of the run.
        title: Written above.
        pictures: Captions and RGB pictures (H, W, 3), uint8, shown in rows of four.

    Returns:
        The file written.

    Raises:
        UserError: If nothing was logged in ``work_dir``.
    """
    curves = read_curves(work_dir)
    if not curves:
        raise UserError(f'{work_dir} holds no log of a run (no */vis_data/scalars.json)')
    panels = {
        'loss': [name for name in curves if name.endswith('loss') or 'loss_' in name],
        'score': [name for name in SCORES if name in curves],
        'learning rate': [name for name in ('lr',) if name in curves],
    }
    rows = 1 + -(-len(pictures) // 4)
    figure = plt.figure(figsize=(14, 3.6 * rows), constrained_layout=True)
    grid = figure.add_gridspec(rows, 12)
    for i, (panel, names) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[0, 4 * i : 4 * i + 4])
        for name in names:
            axes.plot(*curves[name], marker='o' if panel == 'score' else None, label=name)
        axes.set(title=panel, xlabel='iteration')
        axes.grid(alpha=0.3)
        if names:
            axes.legend(fontsize=8)
    for i, (caption, picture) in enumerate(pictures):
        axes = figure.add_subplot(grid[1 + i // 4, 3 * (i % 4) : 3 * (i % 4) + 3])
        axes.imshow(picture)
        axes.set_title(caption, fontsize=9)
        axes.axis('off')
    figure.suptitle(title)
    path = work_dir / 'report.png'
    figure.savefig(path, dpi=90)
    plt.close(figure)
    return path


def draw_sample(
    picture: np.ndarray, sample: Any, meta: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Truth and prediction of a framework's data sample over its picture.

    Args:
        picture: RGB, (H, W, 3), uint8, of any size.
        sample: mmseg's or mmdet's data sample with both.
        meta: ``classes`` and ``palette`` of the data set.

    Returns:
        Two RGB pictures of the size of the truth.
    """
    height, width = sample.ori_shape  # the test pipeline resizes pictures, never labels
    picture = np.asarray(Image.fromarray(picture).resize((width, height)))
    if 'gt_sem_seg' in sample:
        maps = (sample.gt_sem_seg, sample.pred_sem_seg)
        truth, found = (
            overlay(picture, one.data[0].cpu().numpy(), meta['palette']) for one in maps
        )
    else:
        truth, found = (
            draw_instances(picture, one, meta['classes'], meta['palette'])
            for one in (
                from_mmdet(sample.gt_instances),
                from_mmdet(sample.pred_instances).above(SHOWN_SCORE),
            )
        )
    return truth, found


def example_pictures(runner: Runner, number: int = 4) -> list[tuple[str, np.ndarray]]:
    """Ground truth and prediction of the first validation pictures of a run.

    Args:
        runner: A runner with a validation loader and a trained model.
        number: How many pictures.

    Returns:
        Captions and RGB pictures, first all ground truths, then all predictions.
    """
    if runner.val_loop is None:
        return []
    dataset = runner.val_dataloader.dataset
    truths, predictions = [], []
    runner.model.eval()
    for i in range(min(number, len(dataset))):
        item = dataset[i]
        batch = {'inputs': [item['inputs']], 'data_samples': [item['data_samples']]}
        with torch.no_grad():
            sample = runner.model.val_step(batch)[0]
        picture = item['inputs'].permute(1, 2, 0).numpy()[..., ::-1].copy()  # BGR to RGB
        truth, found = draw_sample(picture, sample, dataset.metainfo)
        name = Path(sample.img_path).stem
        truths.append((f'{name}: truth', truth))
        predictions.append((f'{name}: prediction', found))
    return truths + predictions
