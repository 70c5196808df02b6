# As mask_rcnn_vit5_s_coco_3x.py, with one tap per level and a standard FPN behind the pyramid.
_base_ = './mask_rcnn_vit5_s_coco_3x.py'
model = dict(
    backbone=dict(out_indices=(2, 5, 8, 11)),
    neck=[
        dict(type='SimplePyramid', in_channels=384, strides=(4, 8, 16, 32)),
        dict(type='FPN', in_channels=[384] * 4, out_channels=256, num_outs=5),
    ],
)
