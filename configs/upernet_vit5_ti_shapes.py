# The demo: UperNet with ViT-5 tiny on the embedded scenes, from random weights, in minutes.
_base_ = [
    '_base_/models/upernet_vit5.py',
    '_base_/datasets/shapes_seg.py',
    '_base_/schedules/adamw_160k.py',
    '_base_/runtime/seg.py',
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    # LayerScale 1: from 1e-4, made for 300+ epochs of pre-training, minutes would not be enough.
    backbone=dict(arch='ti', pretrain_img_size=128, layer_scale_init=1.0),
    neck=dict(in_channels=192),
    decode_head=dict(in_channels=[192, 192, 192, 192], channels=48, num_classes=12),
    auxiliary_head=dict(in_channels=192, channels=48, num_classes=12),
    test_cfg=dict(_delete_=True, mode='whole'),
)
optim_wrapper = dict(optimizer=dict(lr=1e-3), paramwise_cfg=dict(layer_decay_rate=1.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=50, end=400),
]
train_cfg = dict(max_iters=400, val_interval=200)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=100))
randomness = dict(seed=0)
