# Mask R-CNN on ViT-5 tiny with small heads, for pictures of about 160 px on a CPU.
_base_ = './mask_rcnn_vit5.py'
model = dict(
    data_preprocessor=dict(pad_size_divisor=160),
    backbone=dict(arch='ti', window_size=None, global_attn_indexes=()),
    neck=dict(in_channels=192, out_channels=96, strides=(8, 16, 32)),
    rpn_head=dict(
        in_channels=96,
        feat_channels=96,
        num_convs=1,
        anchor_generator=dict(scales=[4], strides=[8, 16, 32]),  # 32 to 128 px
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=96, featmap_strides=[8, 16]),
        bbox_head=dict(type='Shared2FCBBoxHead', in_channels=96, fc_out_channels=256),
        mask_roi_extractor=dict(out_channels=96, featmap_strides=[8, 16]),
        mask_head=dict(in_channels=96, conv_out_channels=96, num_convs=2),
    ),
    train_cfg=dict(rcnn=dict(sampler=dict(num=64))),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=300)),
)
