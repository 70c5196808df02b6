"""COCO data whose labels follow the config's class names."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmdet.datasets import CocoDataset
from mmdet.datasets.api_wrappers import COCO
from mmdet.registry import DATASETS

from ..datasets.coco_annotations import category_ids, check_masks, check_objects, read_annotations


class CheckedCoco(COCO):
    """pycocotools' index of a checked file, with categories in the order asked for.

    Args:
        annotation_file: JSON file.
        classes: Names that it must have.
        with_masks: Every object must have a mask.
        with_objects: There must be an object of these classes that is no crowd.

    Raises:
        AnnotationError: If the file has a mistake.
    """

    def __init__(
        self, annotation_file: str, classes: Sequence[str], with_masks: bool, with_objects: bool
    ) -> None:
        super().__init__()
        self.path = Path(annotation_file)
        self.dataset = read_annotations(self.path)
        wanted = self.get_cat_ids(classes)
        if with_masks:
            check_masks(self.dataset, self.path)
        if with_objects:
            check_objects(self.dataset, wanted, self.path)
        self.createIndex()
        self.img_ann_map, self.cat_img_map = self.imgToAnns, self.catToImgs  # mmdet's names

    def get_cat_ids(self, cat_names: Sequence[str] = ()) -> list[int]:
        """Ids of categories, in the order of their names; pycocotools gives the file's order."""
        return category_ids(self.dataset, cat_names, self.path)


@DATASETS.register_module()
class ViT5CocoDataset(CocoDataset):
    """mmdet's ``CocoDataset`` for files in any order of categories, checked when they are read.

    ``CocoDataset`` numbers labels in the order of the file's categories and drops names that the
    file does not have, which gives objects the names of others. Here label i is ``classes[i]``.
    ``metainfo`` also holds ``category_ids``, the file's id of each class, and ``ann_file``, from
    which ``ViT5CocoMetric`` knows what to compare with.

    Raises:
        AnnotationError: If the file has a mistake, lacks a class or a mask that the pipeline
            loads, or, for training, has nothing to learn.
    """

    def load_data_list(self) -> list[dict[str, Any]]:
        """Read the annotation file; see ``CocoDataset``."""
        self.COCOAPI = functools.partial(
            CheckedCoco,
            classes=self.metainfo['classes'],
            with_masks=any(getattr(step, 'with_mask', False) for step in self.pipeline.transforms),
            with_objects=not self.test_mode,
        )
        data_list = super().load_data_list()
        self._metainfo['category_ids'] = tuple(self.cat_ids)
        self._metainfo['ann_file'] = self.ann_file
        return data_list
