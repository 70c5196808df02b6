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
from .instances import Instances, from_mmdet
from .pictures import overlay

matplotlib.use('agg')  # files only: works without a display
import matplotlib.pyplot as plt

SCORES = (
    *('mIoU', 'mAcc', 'aAcc'),
    *(f'coco/{kind}_{figure}' for kind in ('bbox', 'segm') for figure in ('mAP', 'mAP_50')),
)
SHOWN_SCORE = 0.5  # objects less certain are left out of the report's pictures
# First part of a name, as ViT5StabilityHook logs it, to the title of its panel.
STABILITY = {
    'layer_scale': 'LayerScale, mean',
    'attention_logit': 'largest attention logit',
    'token_norm': 'length of tokens',
    'grad_norm': 'gradient norm',
}
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


def draw_stability(axes: Any, kind: str, curves: dict[str, Curve]) -> None:
    """One kind of figure into a panel: a line for each part, from the stem (dark) to the heads."""
    parts = {name.partition('/')[2]: curve for name, curve in curves.items()}
    colours = plt.get_cmap('viridis')(np.linspace(0, 0.9, len(parts)))
    for i, (part, curve) in enumerate(parts.items()):
        named = len(parts) < 5 or i in (0, len(parts) - 1)
        axes.plot(*curve, color=colours[i], label=part if named else None, linewidth=1)
    axes.set(title=STABILITY[kind], xlabel='iteration')
    if kind == 'grad_norm':  # decades lie between the blocks
        axes.set_yscale('log')
        axes.minorticks_off()  # their labels are as wide as the panel
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def write_report(
    work_dir: Path, title: str, pictures: Sequence[tuple[str, np.ndarray]] = ()
) -> Path:
    """Draw losses, scores, learning rate and example pictures of a run to ``report.png``.

    What ``ViT5StabilityHook`` has logged, if anything, is drawn below the losses.

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
    stability = {
        kind: {name: curve for name, curve in curves.items() if name.startswith(f'{kind}/')}
        for kind in STABILITY
    }
    first = 2 if any(stability.values()) else 1  # row of the pictures
    rows = first + -(-len(pictures) // 4)
    figure = plt.figure(figsize=(14, 3.6 * rows), constrained_layout=True)
    grid = figure.add_gridspec(rows, 1)
    row_of_curves = grid[0].subgridspec(1, 3)
    rows_of_four = [grid[row].subgridspec(1, 4) for row in range(1, rows)]
    for i, (panel, names) in enumerate(panels.items()):
        axes = figure.add_subplot(row_of_curves[i])
        for name in names:
            axes.plot(*curves[name], marker='o' if panel == 'score' else None, label=name)
        axes.set(title=panel, xlabel='iteration')
        axes.grid(alpha=0.3)
        if names:
            axes.legend(fontsize=8)
    for i, (kind, lines) in enumerate(stability.items()):
        if lines:
            draw_stability(figure.add_subplot(rows_of_four[0][i]), kind, lines)
    for i, (caption, picture) in enumerate(pictures):
        axes = figure.add_subplot(rows_of_four[first - 1 + i // 4][i % 4])
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
) -> tuple[np.ndarray | None, np.ndarray]:
    """Truth and prediction of a framework's data sample over its picture.

    Args:
        picture: RGB, (H, W, 3), uint8, of any size.
        sample: mmseg's or mmdet's data sample with a prediction.
        meta: ``classes`` and ``palette`` of the data set.

    Returns:
        Two RGB pictures of the size of the file; None for the truth if the sample has no labels.
    """
    height, width = sample.ori_shape  # the test pipeline resizes pictures, never labels
    picture = np.asarray(Image.fromarray(picture).resize((width, height)))
    if 'pred_sem_seg' in sample:

        def show(maps: Any) -> np.ndarray:
            return overlay(picture, maps.data[0].long().cpu().numpy(), meta['palette'])

        truth = show(sample.gt_sem_seg) if 'gt_sem_seg' in sample else None
        return truth, show(sample.pred_sem_seg)

    def draw(objects: Instances) -> np.ndarray:
        return draw_instances(picture, objects, meta['classes'], meta['palette'])

    truth = draw(from_mmdet(sample.gt_instances)) if 'gt_instances' in sample else None
    return truth, draw(from_mmdet(sample.pred_instances).above(SHOWN_SCORE))


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
        if truth is not None:
            truths.append((f'{name}: truth', truth))
        predictions.append((f'{name}: prediction', found))
    return truths + predictions
