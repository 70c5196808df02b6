# UperNet with ViT-5 large on ADE20K, 512 x 512, 160k iterations, batch 16 (8 GPUs x 2).
# The paper reports 52.0 mIoU. Every sixth of 24 blocks is tapped. Rate, decay and drop path are
# those of BEiT large (lr 2e-5, layer decay 0.95, drop path 0.2).
_base_ = './upernet_vit5_b_ade20k.py'
model = dict(
    backbone=dict(
        arch='l',
        out_indices=(5, 11, 17, 23),
        drop_path_rate=0.2,
        init_cfg=dict(
            checkpoint='https://huggingface.co/FengWang3211/ViT-5/resolve/main/vit5_large_patch16_384.pth'
        ),
    ),
    neck=dict(in_channels=1024),
    decode_head=dict(in_channels=[1024, 1024, 1024, 1024]),
    auxiliary_head=dict(in_channels=1024),
)
optim_wrapper = dict(optimizer=dict(lr=2e-5), paramwise_cfg=dict(layer_decay_rate=0.95))
