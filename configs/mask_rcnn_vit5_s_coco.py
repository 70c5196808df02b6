# Mask R-CNN with ViT-5 small on COCO, 1024 px, 100 epochs, batch 64 (8 GPUs x 8). Small is
# published at 224 px only. ViTDet has no small model: drop path as for base, layer decay 0.75,
# since a smaller model is commonly fine-tuned with the milder decay.
_base_ = './mask_rcnn_vit5_b_coco.py'
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
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.75))
