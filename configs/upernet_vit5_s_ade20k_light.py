# UperNet with ViT-5 small at several times the speed of upernet_vit5_s_ade20k.py: 128 channels in
# the head, where 512 cost five times as much as the backbone, and test pictures whole, where
# windows that overlap compute a third of each picture twice. The price is accuracy, most of all
# that of thin and small things; how much on ADE20K has not been run.
_base_ = './upernet_vit5_s_ade20k.py'
model = dict(
    decode_head=dict(channels=128),
    auxiliary_head=dict(channels=128),
    test_cfg=dict(_delete_=True, mode='whole'),
)
