# Mask R-CNN with ViT-5 base on COCO, short side 480 to 800, 36 epochs, batch 16 (8 GPUs x 2): the
# schedule by which ViT-Adapter compares plain backbones. Drop path and windows of 14 with every
# third block global are its own for base.
_base_ = [
    '_base_/models/mask_rcnn_vit5.py',
    '_base_/datasets/coco_ms_800.py',
    '_base_/schedules/adamw_3x.py',
    '_base_/runtime/det.py',
]
model = dict(
    data_preprocessor=dict(pad_size_divisor=32),
    backbone=dict(
        pretrain_img_size=384,
        window_size=14,  # 1344 px, the usual long side, are 6 windows
        drop_path_rate=0.2,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://huggingface.co/FengWang3211/ViT-5/resolve/main/vit5_base_patch16_384.pth',
        ),
    ),
)
