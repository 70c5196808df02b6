# What every detection run shares.
_base_ = './default.py'
default_scope = 'mmdet'
custom_imports = dict(imports=['vit5_dense', 'vit5_dense.detection'], allow_failed_imports=False)
default_hooks = dict(
    checkpoint=dict(save_best='coco/bbox_mAP', rule='greater'),
    visualization=dict(type='DetVisualizationHook'),
)
visualizer = dict(
    type='DetLocalVisualizer', vis_backends={{_base_.vis_backends}}, name='visualizer'
)
# Sizes of the pictures in a batch differ: cudnn would search for algorithms again and again.
env_cfg = dict(cudnn_benchmark=False)
