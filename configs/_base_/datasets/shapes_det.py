# Instances in the embedded scenes of tools/make_shapes.py: 160 x 160, some 128 x 224, 224 x 144.
data_help = 'Make it with: python tools/make_shapes.py --out data/shapes'
data_root = 'data/shapes'
metainfo = dict(
    classes=('ball', 'box', 'star', 'car', 'cone', 'balloon'),
    palette=[
        [220, 30, 35], [150, 100, 55], [250, 210, 30],
        [125, 40, 170], [255, 125, 10], [245, 120, 185],
    ],
)  # fmt: skip
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='RandomCrop',
        crop_type='absolute',
        crop_size=(160, 160),
        recompute_bbox=True,
        allow_negative_crop=True,
    ),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
meta_keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale_factor=1.0),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='PackDetInputs', meta_keys=meta_keys),
]
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            [dict(type='Resize', scale_factor=ratio, keep_ratio=True) for ratio in (1.0, 1.5)],
            [dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)],
            [dict(type='LoadAnnotations', with_bbox=True, with_mask=True)],
            [dict(type='PackDetInputs', meta_keys=(*meta_keys, 'flip', 'flip_direction'))],
        ],
    ),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='ViT5CocoDataset',
        metainfo=metainfo,
        data_root=data_root,
        ann_file='instances_train.json',
        data_prefix=dict(img='images/train'),
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='ViT5CocoDataset',
        metainfo=metainfo,
        data_root=data_root,
        ann_file='instances_val.json',
        data_prefix=dict(img='images/val'),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='ViT5CocoMetric', metric=['bbox', 'segm'])
test_evaluator = val_evaluator
tta_model = dict(
    type='ViT5DetTTAModel',
    tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100),
)
