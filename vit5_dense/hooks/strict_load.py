"""Fine-tuning and resuming that never load by halves without a word."""

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..checkpoint import CheckpointError, compare, mismatch, trained_state


@HOOKS.register_module()
class ViT5StrictLoadHook(Hook):
    """Accounts for every tensor of ``load_from`` and ``resume``.

    A run resumes only from a checkpoint that fits whole. Fine-tuning must find the whole backbone;
    tensors outside it may be new (other classes, another head) and are listed in the log.

    Raises:
        CheckpointError: With the account, if more is amiss.
    """

    priority = 'LOWEST'

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare the file with the model before anything is copied."""
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        found = trained_state(checkpoint, runner._load_from)
        wanted = model.state_dict()
        account = compare(found, wanted, 'state_dict')
        if account.complete:
            return
        amiss = [*account.missing, *account.unknown, *account.misshapen]
        if runner._resume or any(key.startswith('backbone.') for key in amiss):
            raise CheckpointError(
                f'{runner._load_from} does not fit the model in the config: {account}\n'
                'A bare ViT-5 belongs in model.backbone.init_cfg, not in load_from'
            )
        new = account.missing + account.misshapen
        print_log(
            f'Fine-tuning from {runner._load_from}: {len(account.loaded)} of {len(wanted)} '
            'tensors. '
            f'Newly initialised: {", ".join(new) or "none"}. '
            f'Not used: {", ".join(account.unknown) or "none"}',
            logger='current',
        )
        state = checkpoint.get('state_dict', checkpoint)
        for key in wanted:
            if key in state and (key not in found or mismatch(found[key], wanted[key])):
                del state[key]
