from typing import Any

import pytest
import torch

pytest.importorskip('mmseg.evaluation')

from vit5_dense import evaluation
from vit5_dense.evaluation import ClassIoUMetric

TRUTH = torch.tensor([[[0, 0, 0, 0], [0, 0, 2, 255]]])
PREDICTION = torch.tensor([[[0, 0, 0, 0], [2, 2, 2, 0]]])
# class 0: 4 pixels right of 6 labelled or 4 predicted; class 2: 1 right of 3 predicted; 1: nowhere


def evaluate(metric: ClassIoUMetric, classes: tuple[str, ...], *pictures: Any) -> dict[str, Any]:
    metric.dataset_meta = {'classes': classes}
    for prediction, truth in pictures:
        sample = {'pred_sem_seg': {'data': prediction}, 'gt_sem_seg': {'data': truth}}
        metric.process({}, [sample])
    return metric.evaluate(len(pictures))


def test_the_mean_is_over_the_classes_that_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    monkeypatch.setattr(evaluation, 'print_log', lambda text, **_: said.append(text))
    metric = ClassIoUMetric(iou_metrics=['mIoU'])
    scores = evaluate(metric, ('sky', 'sea', 'road'), (PREDICTION, TRUTH))
    assert scores['mIoU'] == pytest.approx(50.0, abs=0.01)  # (66.67 + 33.33) / 2, not / 3
    assert scores['classes_averaged'] == 2
    assert metric.table == [
        {'class': 'sky', 'IoU': 66.67, 'Acc': 66.67},
        {'class': 'sea', 'IoU': None, 'Acc': None},
        {'class': 'road', 'IoU': 33.33, 'Acc': 100.0},
    ]
    assert len(said) == 1
    assert '2 of 3 classes' in said[0]
    assert 'sea' in said[0]


def test_a_class_that_is_only_predicted_counts_with_zero() -> None:
    metric = ClassIoUMetric(iou_metrics=['mIoU'])
    scores = evaluate(metric, ('a', 'b', 'c'), (torch.tensor([[[0, 1]]]), torch.tensor([[[0, 0]]])))
    assert scores['mIoU'] == pytest.approx(25.0)  # (50 + 0) / 2
    assert scores['classes_averaged'] == 2
    assert [row['IoU'] for row in metric.table] == [50.0, 0.0, None]


def test_pictures_are_summed_before_the_ratio() -> None:
    pairs = [(torch.tensor([[[0, 0, 0]]]), torch.tensor([[[0, 0, 0]]]))]
    pairs.append((torch.tensor([[[0]]]), torch.tensor([[[1]]])))
    metric = ClassIoUMetric(iou_metrics=['mIoU'])
    evaluate(metric, ('a', 'b'), *pairs)
    assert [row['IoU'] for row in metric.table] == [75.0, 0.0]  # 3 of 4, not (1 + 0) / 2


def test_long_lists_of_absent_classes_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    monkeypatch.setattr(evaluation, 'print_log', lambda text, **_: said.append(text))
    names = tuple(f'class{i}' for i in range(150))
    metric = ClassIoUMetric(iou_metrics=['mIoU'])
    assert evaluate(metric, names, (PREDICTION, TRUTH))['classes_averaged'] == 2
    assert '2 of 150' in said[0]
    assert 'and 140 more' in said[0]


@pytest.mark.parametrize(('name', 'key'), [('mDice', 'Dice'), ('mFscore', 'Fscore')])
def test_other_metrics_of_mmsegmentation_work(name: str, key: str) -> None:
    metric = ClassIoUMetric(iou_metrics=[name])
    scores = evaluate(metric, ('sky', 'sea', 'road'), (PREDICTION, TRUTH))
    assert scores[name] == pytest.approx(65.0, abs=0.01)  # (2*4/(6+4) + 2*1/(1+3)) / 2
    assert [row[key] for row in metric.table] == [80.0, None, 50.0]
    assert scores['classes_averaged'] == 2


def test_format_only_computes_nothing(tmp_path: Any) -> None:
    metric = ClassIoUMetric(format_only=True, output_dir=str(tmp_path))
    metric.dataset_meta = {'classes': ('a', 'b')}
    sample = {'pred_sem_seg': {'data': PREDICTION}, 'img_path': 'x/street.jpg'}
    metric.process({}, [sample])
    assert metric.evaluate(1) == {}
    assert [path.name for path in tmp_path.iterdir()] == ['street.png']
