import copy
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vit5_dense.datasets.coco_annotations import (
    AnnotationError,
    category_ids,
    check_masks,
    check_objects,
    read_annotations,
    run_lengths,
)
from vit5_dense.errors import UserError

POLYGON = [[1, 1, 5, 1, 5, 5]]
#: Two pictures, an object in each, categories in an order of their own.
GOOD: dict[str, Any] = {
    'images': [
        {'id': 10, 'file_name': 'a.jpg', 'height': 6, 'width': 8},
        {'id': 20, 'file_name': 'b.jpg', 'height': 6, 'width': 8},
    ],
    'annotations': [
        {'id': i, 'image_id': image, 'category_id': category, 'bbox': [1, 1, 4, 4.5], 'area': 9}
        | {'segmentation': POLYGON, 'iscrowd': 0}
        for i, image, category in ((1, 10, 7), (2, 20, 3))
    ],
    'categories': [{'id': 7, 'name': 'dog'}, {'id': 3, 'name': 'cat'}, {'id': 9, 'name': 'emu'}],
}
#: The key is taken away.
GONE = object()
FILE = Path('some.json')


def changed(table: str, place: int = 0, **values: Any) -> dict[str, Any]:
    """The good content with other values in one entry."""
    content = copy.deepcopy(GOOD)
    entry = content[table][place]
    entry.update(values)
    for key in [key for key, value in values.items() if value is GONE]:
        del entry[key]
    return content


def written(folder: Path, content: Any) -> Path:
    path = folder / 'instances.json'
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def refusal(path: Path) -> str:
    """The message, one line that begins with the file; no error of another kind."""
    with pytest.raises(AnnotationError) as info:
        read_annotations(path)
    message = str(info.value)
    assert message.startswith(f'{path}')
    assert '\n' not in message
    return message


def test_a_good_file_is_returned_as_it_is(tmp_path: Path) -> None:
    assert read_annotations(written(tmp_path, GOOD)) == GOOD
    assert issubclass(AnnotationError, UserError)


def test_pictures_without_labels_get_an_empty_list(tmp_path: Path) -> None:
    content = {key: GOOD[key] for key in ('images', 'categories')}
    assert read_annotations(written(tmp_path, content)) == {**content, 'annotations': []}


@pytest.mark.parametrize(
    'text',
    ['', '{"images": [', "{'images': []}", '\x00\x01', '[' * 100_000],
    ids=['empty', 'cut short', 'Python', 'bytes', 'too deep'],
)
def test_what_is_no_json_is_named(tmp_path: Path, text: str) -> None:
    assert 'cannot be read as JSON' in refusal(written(tmp_path, text))


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    assert 'No such file' in refusal(tmp_path / 'nope.json')
    assert 'cannot be read' in refusal(tmp_path)


@pytest.mark.parametrize('content', [[], 3, None, 'text', {}], ids=repr)
def test_json_of_something_else_is_no_coco_file(tmp_path: Path, content: Any) -> None:
    assert "no COCO file: it has no list 'images'" in refusal(
        written(tmp_path, json.dumps(content))
    )


@pytest.mark.parametrize('table', GOOD)
@pytest.mark.parametrize('value', [None, {}], ids=repr)
def test_each_table_is_a_list(tmp_path: Path, table: str, value: Any) -> None:
    assert f'no list {table!r}' in refusal(written(tmp_path, {**GOOD, table: value}))


@pytest.mark.parametrize(
    ('table', 'place', 'gone', 'words'),
    [
        ('images', 1, ('height', 'width'), 'images[1] (id 20) has no height, width'),
        ('images', 0, ('file_name',), 'images[0] (id 10) has no file_name'),
        ('images', 0, ('id', 'width'), 'images[0] has no id, width'),
        ('annotations', 1, ('bbox',), 'annotations[1] (id 2) has no bbox'),
        ('annotations', 0, ('area', 'image_id'), 'annotations[0] (id 1) has no image_id, area'),
        ('annotations', 0, ('category_id',), 'annotations[0] (id 1) has no category_id'),
        ('categories', 2, ('name',), 'categories[2] (id 9) has no name'),
    ],
)
def test_missing_keys_are_listed_with_the_entry(
    tmp_path: Path, table: str, place: int, gone: tuple[str, ...], words: str
) -> None:
    content = changed(table, place, **dict.fromkeys(gone, GONE))
    assert refusal(written(tmp_path, content)).endswith(words)


@pytest.mark.parametrize('entry', [None, 5, 'id', ['id', 'name']], ids=repr)
def test_an_entry_that_is_no_dict_lacks_all_keys(tmp_path: Path, entry: Any) -> None:
    content = {**GOOD, 'categories': [*GOOD['categories'], entry]}
    assert 'categories[3] has no id, name' in refusal(written(tmp_path, content))


@pytest.mark.parametrize('value', [None, 1.0, '1', True, [1], {'n': 1}], ids=repr)
@pytest.mark.parametrize(
    ('table', 'key'),
    [(table, 'id') for table in GOOD]
    + [('annotations', 'image_id'), ('annotations', 'category_id')],
)
def test_ids_are_whole_numbers(tmp_path: Path, table: str, key: str, value: Any) -> None:
    """1.0 and true would pass for 1 when they are compared, lists cannot be."""
    message = refusal(written(tmp_path, changed(table, **{key: value})))
    assert f'{table}[0] (id ' in message
    assert message.endswith(f'has {key} {value!r}; it must be a whole number')


@pytest.mark.parametrize(
    ('table', 'key', 'value', 'kind'),
    [
        ('images', 'height', None, 'a number'),
        ('images', 'width', '640', 'a number'),
        ('images', 'file_name', None, 'a text'),
        ('annotations', 'area', None, 'a number'),
        ('annotations', 'area', '9', 'a number'),
        ('categories', 'name', ['cat'], 'a text'),
        ('categories', 'name', 5, 'a text'),
    ],
)
def test_values_have_the_kind_that_mmdet_counts_on(
    tmp_path: Path, table: str, key: str, value: Any, kind: str
) -> None:
    message = refusal(written(tmp_path, changed(table, **{key: value})))
    assert message.endswith(f'has {key} {value!r}; it must be {kind}')


@pytest.mark.parametrize(
    ('table', 'number'), [('images', 10), ('annotations', 1), ('categories', 7)]
)
def test_an_id_is_given_once(tmp_path: Path, table: str, number: int) -> None:
    content = changed(table, 1, id=number)
    assert refusal(written(tmp_path, content)).endswith(f'several {table} have the id {number}')


def test_annotation_id_0_is_refused(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, changed('annotations', id=0)))
    assert 'annotation 0 has the id' in message
    assert 'number annotations from 1' in message


@pytest.mark.parametrize(('key', 'number'), [('image_id', 11), ('category_id', 0)])
def test_references_lead_somewhere(tmp_path: Path, key: str, number: int) -> None:
    message = refusal(written(tmp_path, changed('annotations', 1, **{key: number})))
    assert message.endswith(f'annotation 2 has {key} {number}, which the file does not have')


@pytest.mark.parametrize(
    'box',
    [
        None,
        {'x': 1},
        '1,1,4,4',
        [],
        [1, 1, 4],
        [1, 1, 4, 4, 4],
        [1, 1, '4', 4],
        [1, 1, None, 4],
        [1, True, 4, 4],
        [[1, 1, 4, 4]],
        [1, 1, -1, 4],
        [1, 1, 4, -0.5],
        [float('nan'), 1, 4, 4],
        [1, 1, 4, float('nan')],
        [1, float('inf'), 4, 4],
        [1, 1, float('inf'), 4],
    ],
    ids=repr,
)
def test_a_box_is_four_finite_numbers_of_no_negative_size(tmp_path: Path, box: Any) -> None:
    message = refusal(written(tmp_path, changed('annotations', 1, bbox=box)))
    assert 'id 2' in message or 'annotation 2' in message
    assert f'has bbox {box!r}; it must be [x, y, width, height]' in message


@pytest.mark.parametrize('box', [[0, 0, 0, 0], [-3.5, -2, 100, 1e6], [1, 1, 10**30, 1]], ids=repr)
def test_boxes_beyond_the_picture_are_left_to_mmdet(tmp_path: Path, box: list[float]) -> None:
    content = read_annotations(written(tmp_path, changed('annotations', bbox=box)))
    assert box in [entry['bbox'] for entry in content['annotations']]


@pytest.mark.parametrize(
    ('classes', 'ids'),
    [(('dog', 'cat', 'emu'), [7, 3, 9]), (('cat', 'emu', 'dog'), [3, 9, 7]), (['emu'], [9])],
)
def test_ids_follow_the_classes_not_the_file(classes: Any, ids: list[int]) -> None:
    assert category_ids(GOOD, classes, FILE) == ids


@pytest.mark.parametrize('classes', ['cat', 'dog'])
def test_one_word_for_the_classes_is_refused(classes: str) -> None:
    with pytest.raises(AnnotationError, match=rf"classes='{classes}' .*classes=\('{classes}',\)"):
        category_ids(GOOD, classes, FILE)


@pytest.mark.parametrize(
    ('classes', 'found', 'missing'),
    [
        (('cat', 'dgo', 'emu'), '2 of 3', "'dgo'"),
        (('Cat', 'DOG'), '0 of 2', "'Cat', 'DOG'"),
        (('cat ',), '0 of 1', "'cat '"),
    ],
)
def test_unknown_classes_are_named_beside_those_of_the_file(
    classes: tuple[str, ...], found: str, missing: str
) -> None:
    with pytest.raises(AnnotationError) as info:
        category_ids(GOOD, classes, FILE)
    assert str(info.value).startswith(
        f"some.json: {found} classes found, not {missing}; the file has 'dog', 'cat', 'emu'. Set "
    )


def test_of_many_names_the_first_eight_are_listed() -> None:
    content = {'categories': [{'id': i, 'name': f'c{i}'} for i in range(1, 81)]}
    with pytest.raises(AnnotationError, match=r"has 'c1', 'c2', .*'c8' and 72 more\. Set"):
        category_ids(content, ('cat',), FILE)


def test_a_name_that_two_categories_have_is_refused_where_it_is_wanted() -> None:
    content = changed('categories', 2, name='cat')
    assert category_ids(content, ('dog',), FILE) == [7]
    with pytest.raises(AnnotationError, match=r"some\.json has several categories .*'cat'"):
        category_ids(content, ('dog', 'cat'), FILE)


@pytest.mark.parametrize(
    'segmentation',
    [
        pytest.param(GONE, id='gone'),
        None,
        [],
        {},
        '1 1 5 1 5 5',
        [1, 1, 5, 1, 5, 5],
        [POLYGON[0], None],
        {'size': [6, 8]},
        {'counts': [48]},
        {'counts': None, 'size': [6, 8]},
        {'counts': '', 'size': [6, 8]},
        {'counts': '!!!zz', 'size': [6, 8]},
        {'counts': '`', 'size': [6, 8]},
        {'counts': '`1\ud800', 'size': [6, 8]},
        {'counts': [], 'size': [6, 8]},
        {'counts': [10, 20], 'size': [6, 8]},
        {'counts': [10, 90], 'size': [6, 8]},
        {'counts': [10, -10, 48], 'size': [6, 8]},
        {'counts': ['a', 'b'], 'size': [6, 8]},
        {'counts': [48.0], 'size': [6, 8]},
        {'counts': [48], 'size': [8, 6]},
        {'counts': '`1', 'size': [8, 6]},
        {'counts': '`1', 'size': ['6', '8']},
        [[None] * 8],
        [['a'] * 8],
        [[True] * 8],
        [POLYGON[0], [1, 1, 5, 1, 5, float('nan')]],
        [[1, 1, 5, 1, 5, float('-inf')]],
        [[1, 1, 5, 1, 5, 10**400]],
        [[1, 1, 5, 1, 5, 1e9]],
        [[1, 1, 5, 1, -1e9, 5]],
        [[float('nan'), 1, 5, 1, 5, 5]],
        [[[1, 1], [5, 1], [5, 5]]],
    ],
    ids=lambda value: f'{value!r:.40}',
)
def test_an_object_without_a_mask_is_named_and_counted(segmentation: Any) -> None:
    """Each ends training or scoring with an error that names nothing, or gives a wrong mask."""
    check_masks(GOOD, FILE)
    content = changed('annotations', 1, segmentation=segmentation)
    with pytest.raises(AnnotationError, match=r'some\.json: 1 of 2 .* first is annotation 2: '):
        check_masks(content, FILE)


@pytest.mark.parametrize(
    'segmentation',
    [
        [[1, 2]],
        [[]],
        [[-9e5, 1, 5, 1]],
        {'counts': [48], 'size': [6, 8]},
        {'counts': '`1', 'size': [6, 8]},
    ],
    ids=repr,
)
def test_run_lengths_pass_and_degenerate_polygons_are_left_to_mmdet(segmentation: Any) -> None:
    check_masks(changed('annotations', segmentation=segmentation), FILE)


def test_compressed_run_lengths_are_those_of_pycocotools() -> None:
    """Of noise and of large shapes, whose runs take one to four characters."""
    encode = pytest.importorskip('pycocotools.mask').encode
    random = np.random.default_rng(0)
    for scale in (1, 1, 7, 90, 900):
        small = random.random((random.integers(1, 20), random.integers(1, 20))) < random.random()
        mask = np.kron(small, np.ones((scale, 3), bool))
        flat = [False, *mask.ravel(order='F').tolist()]
        runs = [len(list(group)) for _, group in itertools.groupby(flat)]
        runs[0] -= 1  # the first is background, if of no pixel
        code = encode(np.asfortranarray(mask, np.uint8))['counts'].decode()
        assert run_lengths(code) == runs


def test_there_is_an_object_of_the_classes_that_is_no_crowd() -> None:
    check_objects(GOOD, [7, 9], FILE)
    with pytest.raises(AnnotationError, match=r'^some\.json: has no object of the classes:'):
        check_objects(GOOD, [9], FILE)
    crowd = changed('annotations', 1, iscrowd=1)
    check_objects(crowd, [3, 7], FILE)
    with pytest.raises(AnnotationError, match=r'^some\.json: all 1 objects .* are crowds'):
        check_objects(crowd, [3], FILE)
    with pytest.raises(AnnotationError, match='has no object'):
        check_objects({**GOOD, 'annotations': []}, [3, 7, 9], FILE)


@pytest.mark.parametrize(
    ('name', 'pictures', 'objects'),
    [
        ('coco_edge/empty_segmentation_dataset.json', 2, 249),
        ('coco_edge/icevision6/annotations.json', 6, 36),
        ('coco_edge/labelbox/instances.json', 10, 62),
        ('coco_edge/labelbox/rle.json', 10, 231),
        ('coco_edge/ochuman_rle_str/test_ochuman.json', 3, 5),
        ('coco_mini_s320/annotations/instances_train2017.json', 278, 2081),
        ('coco_mini_s320/annotations/instances_val2017.json', 155, 1244),
    ],
)
def test_real_files_pass_but_for_the_one_without_masks(
    shared: Path, name: str, pictures: int, objects: int
) -> None:
    path = shared / 'data' / name
    if not path.is_file():
        pytest.skip(f'no {path}')
    content = read_annotations(path)
    assert (len(content['images']), len(content['annotations'])) == (pictures, objects)
    check_objects(content, [entry['id'] for entry in content['categories']], path)
    if 'empty_segmentation' in name:
        with pytest.raises(AnnotationError) as info:
            check_masks(content, path)
        assert str(info.value).startswith(f'{path}: 249 of 249 annotations have no segmentation')
        assert 'the first is annotation 1: [] is neither polygons nor run lengths;' in str(
            info.value
        )
    else:
        check_masks(content, path)
