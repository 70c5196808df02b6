"""Sharded training of models that one GPU cannot hold, through mmengine's ``FlexibleRunner``.

In a config, with ``custom_imports = dict(imports=['vit5_dense', 'vit5_dense.sharding'])``::

    runner_type = 'FlexibleRunner'
    strategy = dict(
        type='FSDPStrategy',
        model_wrapper=dict(auto_wrap_policy='vit5_block_policy'),
        state_dict_cfg='full',
    )
    optim_wrapper = dict(clip_grad=None)  # it would see the norm of a process' share only

``FlexibleRunner.from_cfg(cfg).train()`` runs it; the tools here do not. Steps equal those
of DDP, on two CPU processes. There torch 2.11 crashes as it gathers a state dict for a checkpoint.
None of this has run on GPUs.
"""

from mmengine.registry import FUNCTIONS
from torch import nn

from .layers import Block


@FUNCTIONS.register_module()
def vit5_block_policy(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """Tell FSDP to gather the parameters of one block of a ViT-5 at a time.

    All else (tokens, neck, heads) stays in the unit of the whole model, which is gathered
    throughout a step.

    Args:
        module: Asked for.
        recurse: Whether FSDP asks if it should look into the module, not if it should wrap it.
        nonwrapped_numel: Numbers in the module that no unit within it holds; any will do.

    Returns:
        The answer.
    """
    return recurse or isinstance(module, Block)
