# The demo: Mask R-CNN with ViT-5 tiny on the embedded scenes' instances, in minutes on a CPU.
_base_ = [
    '_base_/models/mask_rcnn_vit5.py',
    '_base_/datasets/shapes_det.py',
    '_base_/schedules/adamw_100ep.py',
    '_base_/runtime/det.py',
]
model = dict(
    data_preprocessor=dict(pad_size_divisor=160),
    backbone=dict(
        arch='ti',
        pretrain_img_size=128,
        layer_scale_init=1.0,
        window_size=None,
        global_attn_indexes=(),
    ),
    neck=dict(in_channels=192, out_channels=96, strides=(8, 16, 32)),
    rpn_head=dict(
        in_channels=96,
        feat_channels=96,
        num_convs=1,
        anchor_generator=dict(scales=[4], strides=[8, 16, 32]),  # 32 to 128 px
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=96, featmap_strides=[8, 16]),
        bbox_head=dict(
            in_channels=96,
            conv_out_channels=96,
            fc_out_channels=256,
            num_classes=6,
            num_shared_convs=1,
        ),
        mask_roi_extractor=dict(out_channels=96, featmap_strides=[8, 16]),
        mask_head=dict(in_channels=96, conv_out_channels=96, num_classes=6, num_convs=2),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=300, max_per_img=100),
        rcnn=dict(sampler=dict(num=64)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=100)),
)
optim_wrapper = dict(
    optimizer=dict(lr=5e-4, weight_decay=0.05), paramwise_cfg=dict(layer_decay_rate=0.9)
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=50, end=800),
]
train_cfg = dict(max_iters=800, val_interval=400)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=100))
randomness = dict(seed=0)
