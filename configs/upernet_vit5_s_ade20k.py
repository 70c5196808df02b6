# UperNet with ViT-5 small on ADE20K, 512 x 512, 160k iterations, batch 16 (8 GPUs x 2).
# The paper reports 47.5 mIoU. Small is published at 224 px only. Rate and drop path as for base,
# layer decay 0.75: a smaller model is commonly fine-tuned with the milder decay.
_base_ = './upernet_vit5_b_ade20k.py'
model = dict(
    backbone=dict(
        arch='s',
        pretrain_img_size=224,
        init_cfg=dict(
            checkpoint='https://huggingface.co/FengWang3211/ViT-5/resolve/main/vit5_small_patch16_224.pth'
        ),
    ),
    neck=dict(in_channels=384),
    decode_head=dict(in_channels=[384, 384, 384, 384]),
    auxiliary_head=dict(in_channels=384),
)
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.75))
