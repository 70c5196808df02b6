# 36 epochs of COCO at batch 16: 117,266 pictures with objects / 16 = 7,329 iterations each; the
# rate falls after epochs 27 and 33. AdamW as in the 3x schedules of ViT-Adapter.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    constructor='ViT5LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=0.75),
    clip_grad=dict(max_norm=1.0),  # ViT-5's own training clips at 1
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(
        type='MultiStepLR',
        by_epoch=False,
        begin=0,
        end=263844,
        milestones=[197883, 241857],
        gamma=0.1,
    ),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=263844, val_interval=7329)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(enable=False, base_batch_size=16)
