# The embedded scenes of tools/make_shapes.py: 160 x 160, some 128 x 224 and 224 x 144.
data_help = 'Make it with: python tools/make_shapes.py --out data/shapes'
data_root = 'data/shapes'
metainfo = dict(
    classes=(
        'sky', 'grass', 'road', 'water', 'building', 'tree',
        'ball', 'box', 'star', 'car', 'cone', 'balloon',
    ),
    palette=[
        [120, 180, 235], [150, 200, 80], [110, 110, 115],
        [10, 110, 130], [225, 190, 145], [20, 80, 40],
        [220, 30, 35], [150, 100, 55], [250, 210, 30],
        [125, 40, 170], [255, 125, 10], [245, 120, 185],
    ],
)  # fmt: skip
crop_size = (128, 128)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomCrop', crop_size=crop_size),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
tta_model = dict(type='SegTTAModel')
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            [dict(type='Resize', scale_factor=ratio, keep_ratio=True) for ratio in (1.0, 1.5)],
            [dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)],
            [dict(type='LoadAnnotations')],
            [dict(type='PackSegInputs')],
        ],
    ),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        metainfo=metainfo,
        data_root=data_root,
        data_prefix=dict(img_path='images/train', seg_map_path='annotations/train'),
        img_suffix='.png',
        reduce_zero_label=True,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        metainfo=metainfo,
        data_root=data_root,
        data_prefix=dict(img_path='images/val', seg_map_path='annotations/val'),
        img_suffix='.png',
        reduce_zero_label=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
