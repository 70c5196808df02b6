# What every segmentation run shares.
_base_ = './default.py'
default_scope = 'mmseg'
default_hooks = dict(
    checkpoint=dict(save_best='mIoU'), visualization=dict(type='SegVisualizationHook')
)
visualizer = dict(
    type='SegLocalVisualizer', vis_backends={{_base_.vis_backends}}, name='visualizer'
)
