# What every run shares.
custom_imports = dict(imports=['vit5_dense'], allow_failed_imports=False)
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(
        type='ViT5CheckpointHook',  # old files go once the new one is there
        by_epoch=False,
        interval=4000,
        max_keep_ckpts=2,
        backend_args=dict(backend='vit5_atomic'),  # whole or not at all
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
)
custom_hooks = [
    dict(type='ViT5InterruptHook'),  # Ctrl-C saves, --resume goes on
    dict(type='ViT5PlainCheckpointHook'),  # checkpoints load with weights_only=True
    dict(type='ViT5StrictLoadHook'),  # what a checkpoint lacks is an error or listed
    dict(type='ViT5NonFiniteHook'),  # NaN stops the run and is traced to a module and pictures
    dict(type='ViT5StabilityHook', interval=50),  # curves of LayerScale, logits, tokens, gradients
]
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
vis_backends = [dict(type='LocalVisBackend')]
log_processor = dict(by_epoch=False)
log_level = 'INFO'
load_from = None
resume = False
