# LazyConfig for tools/lazyconfig_train_net.py of detectron2: Mask R-CNN with ViT-5 base on COCO as
# in mask_rcnn_vit5_b_coco.py, 1024 px large-scale jitter, 100 epochs, batch 64.
from functools import partial

import detectron2.data.transforms as T
from detectron2 import model_zoo
from detectron2.config import LazyCall as L
from detectron2.solver import WarmupParamScheduler
from fvcore.common.param_scheduler import MultiStepParamScheduler

from vit5_dense.integrations.detectron2 import (
    ViT5Backbone,
    ViT5SimplePyramid,
    get_vit5_lr_decay_rate,
)

size = 1024
model = model_zoo.get_config('common/models/mask_rcnn_vitdet.py').model
model.backbone = L(ViT5SimplePyramid)(
    net=L(ViT5Backbone)(
        arch='b',
        pretrain_img_size=384,
        out_indices=(11,),
        window_size=16,
        global_attn_indexes=(2, 5, 8, 11),
        drop_path_rate=0.1,
        checkpoint='https://huggingface.co/FengWang3211/ViT-5/resolve/main/vit5_base_patch16_384.pth',
    ),
    out_channels=256,
    square_pad=size,
)

dataloader = model_zoo.get_config('common/data/coco.py').dataloader
dataloader.train.total_batch_size = 64
dataloader.train.mapper.image_format = 'RGB'
dataloader.train.mapper.recompute_boxes = True
dataloader.train.mapper.augmentations = [
    L(T.RandomFlip)(horizontal=True),
    L(T.ResizeScale)(min_scale=0.1, max_scale=2.0, target_height=size, target_width=size),
    L(T.FixedSizeCrop)(crop_size=(size, size), pad=False),
]
dataloader.test.mapper.image_format = 'RGB'
dataloader.test.mapper.augmentations = [
    L(T.ResizeShortestEdge)(short_edge_length=size, max_size=size),
]

train = model_zoo.get_config('common/train.py').train
train.init_checkpoint = ''  # the backbone loads its own file
train.amp.enabled = True
train.max_iter = 184375
lr_multiplier = L(WarmupParamScheduler)(
    scheduler=L(MultiStepParamScheduler)(
        values=[1.0, 0.1, 0.01], milestones=[163889, 177546], num_updates=train.max_iter
    ),
    warmup_length=250 / train.max_iter,
    warmup_factor=0.001,
)
optimizer = model_zoo.get_config('common/optim.py').AdamW
optimizer.lr = 1e-4
optimizer.params.lr_factor_func = partial(get_vit5_lr_decay_rate, num_layers=12, lr_decay_rate=0.7)
# By the last part of a name, so that RMSNorm's weights keep their decay, unlike in our own recipes.
NOT_DECAYED = ('pos_embed', 'cls_token', 'reg_token', 'gamma_1', 'gamma_2', 'bias')
optimizer.params.overrides = {name: dict(weight_decay=0.0) for name in NOT_DECAYED}
