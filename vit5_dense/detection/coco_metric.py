"""COCO's average precision and recall, all twelve figures, for boxes and masks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster
from mmdet.registry import METRICS
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log

from ..datasets.coco_annotations import category_ids, check_masks, read_annotations
from ..errors import UserError
from ..instances import coco_results, from_mmdet

# In the order of pycocotools' summary.
FIGURES = (
    'mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l',
    'AR@1', 'AR@10', 'AR@100', 'AR_s@100', 'AR_m@100', 'AR_l@100',
)  # fmt: skip
KINDS = ('bbox', 'segm')


def log(text: str) -> None:
    """Write a line of the summary to the log."""
    print_log(text, logger='current')


def score(truth: COCO, found: list[dict[str, Any]], kind: str, ids: Sequence[int]) -> Any:
    """Compare results with the truth; the figures equal those of pycocotools.

    Args:
        truth: Annotations.
        found: Entries of a COCO result file; may be empty.
        kind: 'bbox' or 'segm'.
        ids: Categories to score.

    Returns:
        The evaluation after ``summarize()``: ``stats``, the figures in the order of ``FIGURES``,
        and ``eval['precision']`` (IoU threshold, recall, category by id, area, detections).
    """
    if kind == 'segm':  # with boxes at hand their area would decide between small, medium and large
        found = [{key: entry[key] for key in entry if key != 'bbox'} for entry in found]
    results = truth.loadRes(found) if found else COCO({**truth.dataset, 'annotations': []})
    evaluation = COCOeval_faster(truth, results, kind, print_function=lambda line: None)
    evaluation.params.catIds = sorted(ids)
    evaluation.evaluate()
    evaluation.accumulate()
    lines: list[str] = []
    evaluation.print_function = lines.append
    evaluation.summarize()
    log(f'{kind}:\n' + '\n'.join(lines[: len(FIGURES)]))  # what follows are figures of its own
    return evaluation


def mean_precision(precision: np.ndarray) -> float | None:
    """Mean over all thresholds and recalls; None where there is no object."""
    valid = precision[precision > -1]
    return round(float(valid.mean()), 4) if valid.size else None


@METRICS.register_module()
class ViT5CocoMetric(BaseMetric):
    """COCO evaluation of boxes and masks by class name, with faster-coco-eval.

    mmdet's ``CocoMetric`` numbers classes in the order of the file and has to be told the file a
    second time. This one takes file and ids from ``ViT5CocoDataset``. A run that detects nothing
    scores 0.

    Args:
        metric: 'bbox', 'segm' or both.
        ann_file: Annotations to compare with; None takes the data set's.
        format_only: Write the results and score nothing.
        outfile_prefix: Results are written to ``PREFIX.bbox.json`` and ``PREFIX.segm.json``.
        collect_device: See ``mmengine.evaluator.BaseMetric``.
        prefix: See ``mmengine.evaluator.BaseMetric``.

    Attributes:
        table: After an evaluation, for each class a dict of its name and AP by kind, such as
            ``bbox_mAP`` and ``bbox_mAP_50``; None without objects.
    """

    default_prefix = 'coco'

    def __init__(
        self,
        metric: str | Sequence[str] = KINDS,
        ann_file: str | None = None,
        format_only: bool = False,
        outfile_prefix: str | None = None,
        collect_device: str = 'cpu',
        prefix: str | None = None,
    ) -> None:
        super().__init__(collect_device, prefix)
        self.metrics = [metric] if isinstance(metric, str) else list(metric)
        if not self.metrics or set(self.metrics) - set(KINDS):
            raise ValueError(f'metric {metric!r} must be "bbox", "segm" or both')
        if format_only and not outfile_prefix:
            raise ValueError('format_only needs outfile_prefix, where to write the results')
        self.ann_file = ann_file
        self.format_only = format_only
        self.outfile_prefix = outfile_prefix
        self._truth: COCO | None = None

    def process(self, data_batch: Any, data_samples: Sequence[dict[str, Any]]) -> None:
        """Collect the objects found in one batch."""
        for sample in data_samples:
            found = from_mmdet(sample['pred_instances'])
            labels = range(len(self.dataset_meta['classes']))
            self.results.append(coco_results(found, sample['img_id'], labels))

    def compute_metrics(self, results: list[list[dict[str, Any]]]) -> dict[str, float]:
        """Figures of all objects collected.

        Args:
            results: For each picture the entries of a COCO result file, with labels as categories.

        Returns:
            For each kind the twelve figures, 0 to 1, or -1 where nothing could be scored.
        """
        truth = self._load_truth()
        ids = category_ids(truth.dataset, self.dataset_meta['classes'], Path(self._path()))
        found = [
            {**entry, 'category_id': ids[entry['category_id']]}
            for entries in results
            for entry in entries
        ]
        if self.outfile_prefix:
            for kind in self.metrics:
                path = Path(f'{self.outfile_prefix}.{kind}.json')
                path.parent.mkdir(parents=True, exist_ok=True)
                other = 'segmentation' if kind == 'bbox' else 'bbox'
                path.write_text(json.dumps([{k: e[k] for k in e if k != other} for e in found]))
        if self.format_only:
            return {}
        scores: dict[str, float] = {}
        self.table = [{'class': name} for name in self.dataset_meta['classes']]
        for kind in self.metrics:
            evaluation = score(truth, found, kind, ids)
            scores |= {
                f'{kind}_{name}': float(value)
                for name, value in zip(FIGURES, evaluation.stats, strict=True)
            }
            precision = evaluation.eval['precision']  # (T, recall, K, area, detections)
            for row, number in zip(self.table, ids, strict=True):
                of_class = precision[:, :, sorted(ids).index(number), 0, -1]
                row[f'{kind}_mAP'] = mean_precision(of_class)
                row[f'{kind}_mAP_50'] = mean_precision(of_class[0])
        log(self._format_table())
        return scores

    def _path(self) -> str:
        path = self.ann_file or self.dataset_meta.get('ann_file')
        if not path:
            raise UserError(
                'ViT5CocoMetric does not know the annotations: use ViT5CocoDataset, or set '
                'test_evaluator.ann_file (val_evaluator.ann_file in training)'
            )
        return path

    def _load_truth(self) -> COCO:
        if self._truth is None:
            content = read_annotations(Path(self._path()))
            if 'segm' in self.metrics and not self.format_only:
                check_masks(content, Path(self._path()))
            self._truth = COCO(content)
        return self._truth

    def _format_table(self) -> str:
        names = list(self.table[0])
        rows = [[row[name] for name in names] for row in self.table]
        lines = ['  '.join(f'{name:>14}' for name in names)]
        for row in rows:
            cells = ['-' if x is None else x if isinstance(x, str) else f'{x:.4f}' for x in row]
            lines.append('  '.join(f'{cell:>14}' for cell in cells))
        return 'AP by class:\n' + '\n'.join(lines)
