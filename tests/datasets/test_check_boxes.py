from pathlib import Path
from typing import Any

import pytest
from small_data import annotation

from vit5_dense.datasets.check_boxes import Tally, polygon_area

WIDTH, HEIGHT = 8, 6
LINE = [[1, 1, 3, 3, 5, 5]]


def tally(*entries: dict[str, Any], masks: bool = True) -> Tally:
    found = Tally('train', Path('file.json'), {7: 0, 3: 1}, masks)
    for entry in entries:
        found.add(entry, WIDTH, HEIGHT)
    return found


def test_objects_are_counted_by_class_and_what_is_not_learnt_by_reason() -> None:
    found = tally(
        annotation(1),
        annotation(2, category_id=3),
        annotation(3, category_id=3),
        annotation(4, iscrowd=1),
        annotation(5, category_id=99),
        annotation(6, ignore=1),
    )
    assert found.counts.tolist() == [1, 2]
    assert found.ignored == {
        'crowds': 1,
        'objects of other categories': 1,
        'objects marked as ignored': 1,
    }
    assert not found.faults


@pytest.mark.parametrize(
    ('changes', 'kind', 'learnt'),
    [
        ({'bbox': [1, 1, 0, 4]}, 'box without area', False),
        ({'bbox': [1, 1, 4, 0]}, 'box without area', False),
        ({'area': 0}, 'box without area', False),
        ({'bbox': [8, 1, 4, 4]}, 'box outside the picture', False),
        ({'bbox': [1, -4, 4, 4]}, 'box outside the picture', False),
        ({'bbox': [1, 1, 0.9, 4]}, 'object of less than a pixel', False),
        ({'bbox': [1, 1, 9, 4]}, 'box partly outside the picture', True),
        ({'bbox': [-2, 1, 5, 4]}, 'box partly outside the picture', True),
        ({'bbox': [1, 1, 4, 7]}, 'box partly outside the picture', True),
        ({'segmentation': [[1, 1, 3, 3]]}, 'degenerate polygon', False),
        ({'segmentation': [[1, 1, 3, 3, 5, 5, 7]]}, 'degenerate polygon', False),
        ({'segmentation': LINE}, 'degenerate polygon', True),
        ({'segmentation': [[1, 1, 5, 1, 5, 5], [1, 1]]}, 'degenerate polygon', True),
    ],
)
def test_suspicious_objects_are_warnings_with_their_id_and_value(
    changes: dict[str, Any], kind: str, learnt: bool
) -> None:
    found = tally(annotation(41, **changes))
    (fault,) = found.faults
    assert (fault.level, fault.kind, fault.file) == ('warning', kind, 'file.json')
    assert fault.value.startswith('annotation 41: ')
    assert found.counts.sum() == learnt
    assert found.ignored.total() == (not learnt)


@pytest.mark.parametrize('box', [[0, 0, 8, 6], [-0.6, -0.6, 8, 6], [0, 0, 8.9, 6.9], [1, 1, 1, 1]])
def test_rounding_at_the_edge_is_no_fault(box: list[float]) -> None:
    assert not tally(annotation(bbox=box)).faults


def test_polygons_do_not_matter_where_no_masks_are_learnt() -> None:
    found = tally(annotation(segmentation=[[1, 1]]), masks=False)
    assert not found.faults
    assert found.counts.tolist() == [1, 0]


@pytest.mark.parametrize('counts', [[48], '`1'], ids=repr)
def test_run_lengths_of_background_alone_are_a_warning(counts: list[int] | str) -> None:
    found = tally(annotation(segmentation={'size': [HEIGHT, WIDTH], 'counts': counts}))
    assert [(f.level, f.kind) for f in found.faults] == [('warning', 'mask without a pixel')]
    assert found.counts.tolist() == [1, 0], 'mmdet learns an empty mask'


def test_run_lengths_with_an_object_are_no_fault() -> None:
    for counts in ([10, 20, 18], [0, 48], ':d0b0'):  # the last is the first, by pycocotools
        good = {'size': [HEIGHT, WIDTH], 'counts': counts}
        assert not tally(annotation(segmentation=good)).faults


@pytest.mark.parametrize(
    ('x', 'y', 'outside'), [(-4, 0, 1), (-3.9, 0, 0), (8, 0, 1), (0, -4, 1), (0, 6, 1), (7, 5, 0)]
)
def test_a_mask_outside_the_picture_is_a_warning(x: float, y: float, outside: int) -> None:
    """A triangle of 4x4 pixels, alone and beside one inside."""
    polygon = [x, y, x + 4, y, x + 4, y + 4]
    found = tally(annotation(segmentation=[polygon])).faults
    assert [fault.kind for fault in found] == ['mask without a pixel'] * outside
    assert all('the picture is 8x6' in fault.value for fault in found)
    assert not tally(annotation(segmentation=[polygon, [1, 1, 5, 1, 5, 5]])).faults


def test_areas_of_polygons() -> None:
    assert polygon_area([0, 0, 4, 0, 4, 3]) == 6
    assert polygon_area([0, 0, 0, 3, 4, 3, 4, 0]) == 12
    assert polygon_area(LINE[0]) == 0


def test_what_is_counted_is_what_mmdet_learns_from(tmp_path: Path) -> None:
    """Every kind of object at once, against mmdet's own list."""
    pytest.importorskip('mmcv._ext')
    import json

    from mmdet.datasets import CocoDataset

    boxes = [[1, 1, 4, 4], [8, 1, 4, 4], [1, 1, 0.9, 4], [1, 1, 0, 4], [-2, 1, 5, 4], [1, 1, 9, 9]]
    entries = [annotation(i, bbox=box) for i, box in enumerate(boxes, 1)]
    entries += [annotation(11, area=0), annotation(12, ignore=1), annotation(13, iscrowd=1)]
    entries += [annotation(14, category_id=3), annotation(15, category_id=99)]
    names = {7: 'dog', 3: 'cat', 99: 'emu'}
    content = {
        'images': [{'id': 1, 'file_name': 'a.png', 'width': WIDTH, 'height': HEIGHT}],
        'annotations': entries,
        'categories': [{'id': number, 'name': name} for number, name in names.items()],
    }
    (tmp_path / 'a.json').write_text(json.dumps(content))
    data = CocoDataset(
        ann_file=str(tmp_path / 'a.json'),
        data_prefix={'img': ''},
        metainfo={'classes': ('dog', 'cat')},
        pipeline=[],
    )
    objects = data.get_data_info(0)['instances']
    labels = [one['bbox_label'] for one in objects if not one['ignore_flag']]
    found = tally(*entries)
    assert found.counts.tolist() == [labels.count(0), labels.count(1)] == [3, 1]
    assert found.ignored['crowds'] == sum(one['ignore_flag'] for one in objects) == 1
