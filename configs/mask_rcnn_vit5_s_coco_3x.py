# Mask R-CNN with ViT-5 small on COCO, short side 480 to 800, 36 epochs, batch 16 (8 GPUs x 2).
# Small is published at 224 px only.
_base_ = './mask_rcnn_vit5_b_coco_3x.py'
model = dict(
    backbone=dict(
        arch='s',
        pretrain_img_size=224,
        init_cfg=dict(
            checkpoint='https://huggingface.co/FengWang3211/ViT-5/resolve/main/vit5_small_patch16_224.pth'
        ),
    ),
    neck=dict(in_channels=384),
)
