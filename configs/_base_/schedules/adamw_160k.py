# 160k iterations at batch 16 with AdamW: BEiT's UperNet recipe. Leaves set rate and layer decay.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    constructor='ViT5LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=0.9),
    clip_grad=dict(max_norm=1.0),  # ViT-5's own training clips at 1
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=1500, end=160000),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=160000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(enable=False, base_batch_size=16)
