"""Mean IoU that says over how many classes it was averaged, and keeps every class's figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.logging import print_log
from mmseg.evaluation import IoUMetric
from mmseg.registry import METRICS

from .pictures import save_labels


@METRICS.register_module()
class ClassIoUMetric(IoUMetric):
    """mmsegmentation's ``IoUMetric`` with a table that can be written to a file.

    A class that is neither labelled nor predicted anywhere has no IoU and is left out of the mean;
    the log says so, since a mean over fewer classes does not compare with the full one.

    Attributes:
        table: After an evaluation, for each class a dict of its name and figures such as IoU and
            Acc, in per cent, None where undefined.
    """

    output_dir: str | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Written here, since IoUMetric's own writing fails on pictures one pixel wide and knows
        # 256 classes only.
        self._folder, self.output_dir = self.output_dir, None

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Collect one batch, and write its label maps if ``output_dir`` is set."""
        super().process(data_batch, data_samples)
        if self._folder is None:
            return
        for sample in data_samples:
            labels = sample['pred_sem_seg']['data'][0].cpu().numpy()  # (H, W)
            path = Path(self._folder, f'{Path(sample["img_path"]).stem}.png')
            offset = int(sample.get('reduce_zero_label', False))
            save_labels(path, labels, len(self.dataset_meta['classes']), offset)

    def compute_metrics(self, results: list) -> dict[str, Any]:
        """Metrics of ``IoUMetric``, with ``classes_averaged`` added."""
        if self.format_only:
            return {}
        metrics = super().compute_metrics(results)
        areas = (sum(column) for column in zip(*results, strict=True))
        values = self.total_area_to_metrics(*areas, self.metrics, self.nan_to_num, self.beta)
        columns = {name: column for name, column in values.items() if np.ndim(column)}
        self.table = [
            {'class': name}
            | {
                key: None if np.isnan(column[i]) else round(100 * float(column[i]), 2)
                for key, column in columns.items()
            }
            for i, name in enumerate(self.dataset_meta['classes'])
        ]
        first = next(iter(columns))
        absent = [row['class'].strip() for row in self.table if row[first] is None]
        averaged = len(self.table) - len(absent)
        message = f'm{first} is the mean over {averaged} of {len(self.table)} classes'
        if absent:
            message += f'; neither labelled nor predicted: {", ".join(absent[:8])}'
            message += f' and {len(absent) - 8} more' if len(absent) > 8 else ''
        print_log(message, logger='current')
        metrics['classes_averaged'] = averaged
        return metrics
