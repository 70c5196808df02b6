# Mask R-CNN with ViT-5 large on COCO, 1024 px, 100 epochs, batch 64 (8 GPUs x 8). Every sixth of 24
# blocks is global. Layer decay and drop path are ViTDet's for large.
_base_ = './mask_rcnn_vit5_b_coco.py'
model = dict(
    backbone=dict(
        arch='l',
        out_indices=(23,),
        global_attn_indexes=(5, 11, 17, 23),
        drop_path_rate=0.4,
        init_cfg=dict(
            checkpoint='https://huggingface.co/FengWang3211/ViT-5/resolve/main/vit5_large_patch16_384.pth'
        ),
    ),
    neck=dict(in_channels=1024),
)
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.8))
