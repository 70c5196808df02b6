import argparse
import csv
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData
from PIL import Image

from vit5_dense.error_report.collect import picture_number
from vit5_dense.error_report.files import write_report
from vit5_dense.error_report.objects import ObjectErrors
from vit5_dense.error_report.pixels import PixelErrors
from vit5_dense.error_report.watch import watch_errors
from vit5_dense.errors import UserError

FACTS = {'config': 'configs/tiny.py', 'checkpoint': 'iter_4.pth'}
ALARMS = ['false_alarms', 'found_twice', 'misplaced']
PALETTE = [(200, 0, 0), (0, 0, 200)]


def picture_file(folder: Path, name: str) -> str:
    path = folder / f'{name}.png'
    Image.fromarray(np.full((4, 8, 3), 90, np.uint8)).save(path)
    return str(path)


def labelled(folder: Path, name: str, wrong: int, ignored: int = 0) -> Any:
    """A picture of class 0 with some pixels taken for class 1."""
    truth, predicted = torch.zeros(1, 4, 8), torch.zeros(1, 4, 8)
    predicted.view(-1)[:wrong] = 1
    truth.view(-1)[:ignored] = 255
    sample = BaseDataElement(metainfo={'img_path': picture_file(folder, name)})
    sample.gt_sem_seg = SimpleNamespace(data=truth.to(torch.uint8))
    sample.pred_sem_seg = SimpleNamespace(data=predicted)
    return sample


def detected(folder: Path, name: str, truth: list[int], found: list[tuple[int, float]]) -> Any:
    """A picture with objects in a row, by class, and what was found there, by class and score."""

    def boxes(number: int) -> torch.Tensor:
        return torch.tensor([(20.0 * i, 0, 20 * i + 9, 9) for i in range(number)]).reshape(-1, 4)

    sample = BaseDataElement(
        metainfo={'img_path': picture_file(folder, name), 'ori_shape': (20, 200)}
    )
    labels = torch.tensor(truth, dtype=torch.long)
    sample.gt_instances = InstanceData(bboxes=boxes(len(truth)), labels=labels)
    sample.pred_instances = InstanceData(
        bboxes=boxes(len(found)),
        labels=torch.tensor([label for label, _ in found], dtype=torch.long),
        scores=torch.tensor([score for _, score in found]),
    )
    return sample


def rows(path: Path) -> list[list[str]]:
    with path.open(newline='') as file:
        return list(csv.reader(file))


def test_pictures_are_listed_and_shown_the_worst_first(tmp_path: Path) -> None:
    errors = PixelErrors(['sky', 'sea '], PALETTE)
    samples = [labelled(tmp_path, name, wrong) for name, wrong in (('a', 1), ('b', 16), ('c', 0))]
    samples.append(labelled(tmp_path, 'd', 0, ignored=32))
    errors.after_test_iter(None, 0, None, samples[:3])
    errors.after_test_iter(None, 1, None, samples[3:])
    (tmp_path / 'worst').mkdir()
    (tmp_path / 'worst' / 'old.png').touch()
    path = write_report(errors, tmp_path, FACTS, {'mIoU': 12.5})
    header, *listed = rows(tmp_path / 'pictures.csv')
    assert header == ['name', 'path', 'mean_IoU', 'pixel_accuracy']
    assert [row[0] for row in listed] == ['b', 'a', 'c', 'd']
    assert listed[0][1:] == [str(tmp_path / 'b.png'), '0.25', '0.5']  # (16 / 32 + 0) / 2
    assert listed[1][2] == f'{31 / 32 / 2:.4f}'
    assert listed[3][2:] == ['', ''], 'nothing counts'
    sheets = sorted((tmp_path / 'worst').iterdir())
    assert [sheet.name for sheet in sheets] == ['a.png', 'b.png', 'c.png', 'd.png']
    assert rows(tmp_path / 'confusion.csv') == [
        ['true / predicted', 'sky', 'sea', '(no class)'],
        ['sky', '79', '17', '0'],
        ['sea', '0', '0', '0'],
        ['(no class)', '0', '0', '0'],
    ]
    page = path.read_text()
    shown = re.findall('<h3>(.*?) <small', page)
    assert shown == [
        '1. b: mean IoU 0.25, pixel accuracy 0.5',
        '2. a: mean IoU 0.4844, pixel accuracy 0.9688',
        '3. c: mean IoU 1, pixel accuracy 1',
        '4. d: mean IoU –, pixel accuracy –',
    ]
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_dir()) == ['worst']
    told = re.findall('<li>(.*?)</li>', re.sub('<i .*?</i>', '', page))
    assert told == [
        'sky taken for sea: 50.0 % of the pixels, 50.0 % of the class',
        'sky taken for sea: 3.1 % of the pixels, 3.1 % of the class',
        'sky taken for sea: 17.7 % of the pixels, 17.7 % of the class',  # of the whole set
    ]
    assert '12.5' in page
    assert 'configs/tiny.py' in page


def test_only_the_worst_are_kept_and_of_equals_the_first(tmp_path: Path) -> None:
    errors = PixelErrors(['sky', 'sea'], PALETTE, number=3, folder=tmp_path)
    for number, wrong in enumerate((3, 9, 1, 2, 9, 3, 8)):
        errors.add(labelled(tmp_path, str(number), wrong))
    assert [Path(one.path).stem for one in errors.worst()] == ['1', '4', '6']
    errors.add(labelled(tmp_path, '7', 8))
    assert [Path(one.path).stem for one in errors.worst()] == ['1', '4', '6']
    assert len(errors.pictures) == 8
    assert len([*tmp_path.glob('.sheets_*/*.png')]) == 3


def test_all_pictures_have_sheets_and_those_beyond_twenty_are_linked(tmp_path: Path) -> None:
    errors = PixelErrors(['sky', 'sea'], PALETTE, number=picture_number('all'))
    for number in range(23):
        errors.add(labelled(tmp_path, f'{number} %', number))
    page = write_report(errors, tmp_path, FACTS, {}).read_text()
    assert len(list((tmp_path / 'worst').iterdir())) == 23
    links = re.findall('src="(worst/.*?)"', page)
    assert links == [f'worst/{number}%20%25.png' for number in (2, 1, 0)]
    assert page.count('src="data:image/jpeg') == 20


@pytest.mark.parametrize('text', ['0', '-1', '1.5', 'some', ''])
def test_a_number_of_pictures_is_one_or_more_or_all(text: str) -> None:
    assert (picture_number('7'), picture_number('all')) == (7, np.inf)
    with pytest.raises(argparse.ArgumentTypeError, match='1 or more'):
        picture_number(text)


def test_a_name_that_is_no_utf8_is_escaped(tmp_path: Path) -> None:
    errors = PixelErrors(['sky', 'sea'], PALETTE, number=30)
    for number in range(21):
        errors.add(labelled(tmp_path, os.fsdecode(b'caf\xe9%d' % number), 3))
    page = write_report(errors, tmp_path, FACTS, {}).read_text(encoding='utf-8')
    assert rows(tmp_path / 'pictures.csv')[1][0] == r'caf\udce90'
    assert r'1. caf\udce90: ' in page
    assert 'src="worst/caf%E920.png"' in page, 'the bytes of the name'
    assert os.fsencode(tmp_path) + b'/worst/caf\xe920.png' in [
        os.fsencode(path) for path in (tmp_path / 'worst').iterdir()
    ]


def test_a_report_of_no_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='the test set has none'):
        write_report(PixelErrors(['sky'], PALETTE), tmp_path, FACTS, {})
    loader = SimpleNamespace(dataset=[])
    with pytest.raises(UserError, match='the test set has none'):
        watch_errors(SimpleNamespace(test_dataloader=loader), tmp_path)


def test_a_sheet_is_drawn_only_for_a_picture_among_the_worst(tmp_path: Path) -> None:
    errors = PixelErrors(['sky', 'sea'], PALETTE, number=1)
    errors.add(labelled(tmp_path, 'a', 9))
    better = labelled(tmp_path, 'b', 1)
    Path(better.img_path).unlink()
    errors.add(better)
    assert [Path(one.path).stem for one in errors.worst()] == ['a']


def test_pictures_of_one_name_in_two_folders_have_two_sheets(tmp_path: Path) -> None:
    errors = PixelErrors(['sky', 'sea'], PALETTE)
    for place in ('north', 'south'):
        (tmp_path / place).mkdir()
        errors.add(labelled(tmp_path / place, '1', 3))
    write_report(errors, tmp_path, FACTS, {})
    sheets = sorted(path.name for path in (tmp_path / 'worst').iterdir())
    assert sheets == ['north_1.png.png', 'south_1.png.png']


def test_the_page_needs_no_other_file_and_takes_names_as_text(tmp_path: Path) -> None:
    errors = PixelErrors(['<b>sky & {sea}', '<script>'], PALETTE)
    errors.add(labelled(tmp_path, '<i>a', 9))
    page = write_report(errors, tmp_path, FACTS, {}).read_text()
    assert '&lt;b&gt;sky &amp; {sea}' in page
    assert '&lt;i&gt;a' in page
    assert '<b>sky' not in page
    assert '<script' not in page
    assert '<i>a' not in page
    sources = re.findall('(?:src|href)="(.{10})', page)
    assert sources == ['data:image'] * 2, 'one sheet and the matrix'


def test_objects_are_counted_above_the_threshold_and_told_in_words(tmp_path: Path) -> None:
    errors = ObjectErrors(['ball', 'box'], PALETTE)
    errors.add(detected(tmp_path, 'good', [0, 1], [(0, 0.9), (1, 0.31)]))
    errors.add(detected(tmp_path, 'bad', [0, 0, 0], [(0, 0.9), (1, 0.8), (0, 0.29)]))
    errors.add(detected(tmp_path, 'ghost', [], [(1, 0.9)]))
    errors.add(detected(tmp_path, 'empty', [], []))
    table = [
        {'class': 'ball', 'bbox_mAP': 0.25, 'bbox_mAP_50': 0.5},
        {'class': 'box', 'bbox_mAP': None, 'bbox_mAP_50': None},
    ]
    scores = {'coco/bbox_mAP': 0.25, 'coco/bbox_mAP_50': 0.5, 'coco/bbox_AR@1': 0.1}
    page = write_report(errors, tmp_path, FACTS, scores, table).read_text()
    header, *listed = rows(tmp_path / 'pictures.csv')
    assert header[2:] == ['F1', 'right', 'wrong_class', 'missed', *ALARMS]
    assert (
        [(row[0], *row[2:]) for row in listed]
        == [
            ('ghost', '0.0', '0', '0', '0', '1', '0', '0'),
            ('bad', '0.4', '1', '1', '1', '0', '0', '0'),  # 2 * 1 / (3 + 2)
            ('good', '1.0', '2', *'000000'[1:]),
            ('empty', '1.0', *'000000'),
        ]
    )
    assert rows(tmp_path / 'confusion.csv')[1:] == [
        ['ball', '2', '1', '1'],
        ['box', '0', '1', '0'],
        ['background', '0', '1', '0'],
    ]
    text = re.sub('<[^>]*>', '', page)
    assert 'ball taken for box: 1 of 3' in text
    assert 'ball missed: 1 of 3' in text
    assert 'false alarms of box: 1' in text
    assert 'bbox AP500.500' in text, 'a headline'
    assert '0.100' not in text, 'recall is none'
    cells = [re.findall('<td>(.*?)</td>', row) for row in re.findall('<tr>(.*?)</tr>', page)]
    assert [re.sub('<.*?>', '', cell[0]) for cell in cells[-2:]] == ['box', 'ball'], 'worst first'
    assert cells[-1][1:5] == ['0.250', '0.500', '66.7 %', '50.0 %']
    assert cells[-2][1:5] == ['–', '–', '50.0 %', '100.0 %']
    assert len(list((tmp_path / 'worst').iterdir())) == 4


def test_a_model_without_errors_gets_a_page_too(tmp_path: Path) -> None:
    errors = ObjectErrors(['ball'], PALETTE[:1])
    errors.add(detected(tmp_path, 'empty', [], []))
    page = write_report(errors, tmp_path, FACTS, {}).read_text()
    assert '1. empty: F1 1, right 0' in page
