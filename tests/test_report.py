import json
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement
from PIL import Image

from vit5_dense.errors import UserError
from vit5_dense.report import example_pictures, read_curves, write_report


def log(work_dir: Path, run: str, *rows: dict[str, Any], end: str = '') -> None:
    """Write what mmengine logs in a run; ``end`` is appended as it is."""
    folder = work_dir / run / 'vis_data'
    folder.mkdir(parents=True)
    text = ''.join(json.dumps(row) + '\n' for row in rows)
    (folder / 'scalars.json').write_text(text + end)


def test_curves_are_in_order_of_iterations(tmp_path: Path) -> None:
    log(
        tmp_path,
        '20250101_000000',
        {'loss': 3.0, 'lr': 1e-3, 'step': 20},
        {'mIoU': 7.5, 'step': 20},
    )
    log(tmp_path, '20250102_000000', {'loss': 2.0, 'step': 40}, {'loss': 2.5, 'step': 30})
    curves = read_curves(tmp_path)
    assert curves['loss'] == ([20, 30, 40], [3.0, 2.5, 2.0])
    assert curves['lr'] == ([20], [1e-3])
    assert curves['mIoU'] == ([20], [7.5])
    assert 'step' not in curves


def test_of_a_resumed_run_the_later_value_counts(tmp_path: Path) -> None:
    log(tmp_path, '20250101_000000', {'loss': 3.0, 'step': 1}, {'loss': 9.0, 'step': 2})
    log(tmp_path, '20250102_000000', {'loss': 2.0, 'step': 2}, {'loss': 1.0, 'step': 3})
    assert read_curves(tmp_path)['loss'] == ([1, 2, 3], [3.0, 2.0, 1.0])


def test_text_and_nan_do_no_harm(tmp_path: Path) -> None:
    log(tmp_path, 'a', {'loss': float('nan'), 'note': 'text', 'step': 1})
    curves = read_curves(tmp_path)
    assert np.isnan(curves['loss'][1][0])
    assert 'note' not in curves
    write_report(tmp_path, 'title')


def test_a_line_that_a_killed_run_cut_short_is_left_out(tmp_path: Path) -> None:
    log(tmp_path, 'a', {'loss': 3.0, 'step': 1}, end='{"loss": 2.0, "st')
    log(tmp_path, 'b', {'loss': 1.0, 'step': 2})
    assert read_curves(tmp_path)['loss'] == ([1, 2], [3.0, 1.0])


@pytest.mark.parametrize(('pictures', 'rows'), [(0, 1), (1, 2), (4, 2), (5, 3)])
def test_the_report_has_a_row_of_curves_and_rows_of_four_pictures(
    tmp_path: Path, pictures: int, rows: int
) -> None:
    log(
        tmp_path,
        'a',
        *({'loss': 3.0 - k, 'decode.loss_ce': 1.0, 'lr': 0.1, 'step': k} for k in (1, 2)),
        {'mIoU': 50.0, 'step': 2},
    )
    shown = [(f'picture {i}', np.full((20, 30, 3), 90, np.uint8)) for i in range(pictures)]
    path = write_report(tmp_path, 'a title', shown)
    assert path == tmp_path / 'report.png'
    drawn = Image.open(path)
    assert drawn.size == (1260, 324 * rows)
    colors = np.asarray(drawn.convert('RGB'))
    assert ((colors == 90).all(-1).sum() > 1000) == (pictures > 0)
    # matplotlib's first colour: the curves of all three panels, left, middle and right
    blue = (np.abs(colors.astype(int) - (31, 119, 180)).sum(-1) < 30)[:324]
    for third in np.array_split(blue, 3, axis=1):
        assert third.any()


def test_without_a_log_the_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='no log') as info:
        write_report(tmp_path, 'title')
    assert str(tmp_path) in str(info.value)
    assert not (tmp_path / 'report.png').exists()


class Model(torch.nn.Module):
    """Predicts class 1 everywhere."""

    def val_step(self, batch: dict[str, Any]) -> list[Any]:
        sample = batch['data_samples'][0]
        if 'gt_sem_seg' in sample:
            data = torch.ones_like(sample.gt_sem_seg.data, dtype=torch.float)  # as of one channel
            sample.pred_sem_seg = SimpleNamespace(data=data)
        else:
            sample.pred_instances = instances([8, 4, 16, 12], 1, scores=torch.tensor([0.9]))
        return [sample]


def item(name: str, size: tuple[int, int], label_size: tuple[int, int]) -> dict[str, Any]:
    labels = torch.zeros(1, *label_size, dtype=torch.long)
    bgr = torch.tensor([10, 20, 30], dtype=torch.uint8).view(3, 1, 1)
    sample = BaseDataElement(metainfo={'img_path': f'/x/{name}.png', 'ori_shape': label_size})
    sample.gt_sem_seg = SimpleNamespace(data=labels)
    return {'inputs': bgr.expand(3, *size), 'data_samples': sample}


def instances(box: list[float], label: int, **more: Any) -> dict[str, Any]:
    return {'bboxes': torch.tensor([box]), 'labels': torch.tensor([label]), **more}


class Scenes(list):
    """Items with the palette of their classes."""

    metainfo = MappingProxyType({'palette': ((110, 0, 0), (0, 220, 0)), 'classes': ('a', 'b')})


def runner_of(*items: dict[str, Any]) -> Any:
    loader = SimpleNamespace(dataset=Scenes(items))
    return SimpleNamespace(model=Model(), val_dataloader=loader, val_loop='any')


def test_truth_and_prediction_are_laid_over_the_first_pictures() -> None:
    items = [item(name, (4, 6), (4, 6)) for name in 'abc']
    shown = example_pictures(runner_of(*items), number=2)
    assert [caption for caption, _ in shown] == [
        'a: truth',
        'b: truth',
        'a: prediction',
        'b: prediction',
    ]
    assert np.unique(shown[0][1].reshape(-1, 3), axis=0).tolist() == [[70, 10, 5]]  # half red
    assert np.unique(shown[2][1].reshape(-1, 3), axis=0).tolist() == [[15, 120, 5]]  # half green


def test_a_picture_that_the_pipeline_resized_gets_the_size_of_its_labels() -> None:
    shown = example_pictures(runner_of(item('a', (8, 12), (4, 6))))
    assert [picture.shape for _, picture in shown] == [(4, 6, 3)] * 2


def test_objects_are_drawn_where_they_are_in_the_unresized_picture() -> None:
    one = item('a', (80, 120), (40, 60))
    sample = one['data_samples']
    del sample.gt_sem_seg
    sample.gt_instances = instances([30, 20, 50, 38], 0)
    truth, found = (picture for _, picture in example_pictures(runner_of(one)))
    assert truth.shape == found.shape == (40, 60, 3)
    red, green = (truth == (110, 0, 0)).all(-1), (found == (0, 220, 0)).all(-1)
    assert red[20:38, 30].all()  # left edges of the boxes
    assert green[4:12, 8].all()
    assert not red[:, :30].any()
    assert not green[:, 50:].any()


def test_without_labels_the_prediction_is_shown_alone() -> None:
    one = item('a', (40, 60), (40, 60))
    del one['data_samples'].gt_sem_seg
    ((caption, picture),) = example_pictures(runner_of(one))
    assert caption == 'a: prediction'
    assert (picture == (0, 220, 0)).all(-1)[4:12, 8].all()


def test_without_validation_there_are_no_pictures() -> None:
    assert example_pictures(SimpleNamespace(val_loop=None)) == []
