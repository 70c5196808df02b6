# The demo: Mask R-CNN with ViT-5 tiny on the embedded scenes' instances, in minutes on a CPU.
_base_ = [
    '_base_/models/mask_rcnn_vit5_ti.py',
    '_base_/datasets/shapes_det.py',
    '_base_/schedules/adamw_100ep.py',
    '_base_/runtime/det.py',
]
model = dict(
    backbone=dict(pretrain_img_size=128, layer_scale_init=1.0),  # as the segmentation demo
    roi_head=dict(bbox_head=dict(num_classes=6), mask_head=dict(num_classes=6)),
)
optim_wrapper = dict(
    optimizer=dict(lr=5e-4, weight_decay=0.05),
    # The heads start from nothing, the backbone has learnt.
    paramwise_cfg=dict(layer_decay_rate=1.0, custom_keys=dict(backbone=dict(lr_mult=0.3))),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=50, end=240),
]
train_cfg = dict(max_iters=240, val_interval=120)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=60))
randomness = dict(seed=0)
