# Cascade Mask R-CNN with ViT-5 base on COCO, 1024 px, 100 epochs, batch 64 (8 GPUs x 8). Layer
# decay and drop path are ViTDet's for base.
_base_ = [
    '_base_/models/cascade_mask_rcnn_vit5.py',
    '_base_/datasets/coco_lsj_1024.py',
    '_base_/schedules/adamw_100ep.py',
    '_base_/runtime/det.py',
]
model = dict(
    backbone=dict(
        pretrain_img_size=384,
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://huggingface.co/FengWang3211/ViT-5/resolve/main/vit5_base_patch16_384.pth',
        ),
    ),
)
