# COCO instances, without augmentation: the files, loaders and the evaluation.
data_help = (
    'Get it with: python tools/prepare_coco.py, or download train2017.zip, val2017.zip and '
    'annotations_trainval2017.zip from https://cocodataset.org/#download and unpack them '
    'to data/coco, or point at them: --cfg-options train_dataloader.dataset.data_root=DIR '
    'val_dataloader.dataset.data_root=DIR '
    'test_dataloader.dataset.data_root=DIR'
)
data_root = 'data/coco'
train_dataloader = dict(
    batch_size=2,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='ViT5CocoDataset',
        data_root=data_root,
        ann_file='annotations/instances_train2017.json',
        data_prefix=dict(img='train2017'),
        filter_cfg=dict(filter_empty_gt=True, min_size=32),
        pipeline=[],
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='ViT5CocoDataset',
        data_root=data_root,
        ann_file='annotations/instances_val2017.json',
        data_prefix=dict(img='val2017'),
        test_mode=True,
        pipeline=[],
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='ViT5CocoMetric', metric=['bbox', 'segm'])
test_evaluator = val_evaluator
# Boxes and masks of all scales and flips, the best of those that overlap.
tta_model = dict(
    type='ViT5DetTTAModel',
    tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100),
)
