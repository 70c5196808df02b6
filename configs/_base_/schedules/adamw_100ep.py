# 100 epochs of COCO at batch 64, as in ViTDet: 118,000 x 100 / 64 = 184,375 iterations; the rate
# falls after 88.9 % and 96.3 %. Leaves set layer decay and drop path.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.1),
    constructor='ViT5LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=0.7),
    clip_grad=dict(max_norm=1.0),  # ViT-5's own training clips at 1; ViTDet does not clip
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=250),
    dict(
        type='MultiStepLR',
        by_epoch=False,
        begin=0,
        end=184375,
        milestones=[163889, 177546],
        gamma=0.1,
    ),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=184375, val_interval=7375)  # 4 epochs
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(enable=False, base_batch_size=64)
