"""Resuming that equals never having stopped."""

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..exact import ITERATION, Continued, NumberedBatches, seed_all

VALIDATED = 'vit5_validated'  # in the message hub: iteration of the last validation that ended


@HOOKS.register_module()
class ViT5ExactHook(Hook):
    """Starts the loader where the run stands, and each iteration with random numbers of its own.

    For loops by iteration over a loader from ``vit5_dense.exact.exact_loader``. A run that stopped
    after an iteration and before its validation had ended validates first.
    """

    priority = 'VERY_HIGH'

    def before_train(self, runner: Runner) -> None:
        """Pass over the samples of iterations that are done, without loading them."""
        loop = runner.train_loop
        batches = loop.dataloader.batch_sampler
        if isinstance(batches, NumberedBatches):
            batches.start = loop.iter
            asks_again = not hasattr(loop.dataloader_iterator, 'skip_iter')  # upstream's mmengine
            loop.dataloader_iterator = Continued(loop.dataloader, loop.iter if asks_again else 0)

    def before_train_epoch(self, runner: Runner) -> None:
        """Validate if the checkpoint is from before the validation of its iteration."""
        loop = runner.train_loop
        if runner.val_loop is None or loop.iter < max(1, loop.val_begin):
            return
        loop._decide_current_val_interval()
        due = loop.iter % loop.val_interval == 0 or loop.iter == loop.max_iters
        if due and runner.message_hub.runtime_info.get(VALIDATED) != loop.iter:
            runner.logger.info('Validating iteration %d first, which was not done', loop.iter)
            runner.val_loop.run()

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Note it before the best checkpoint is written, and the regular one once more with it."""
        runner.message_hub.update_info(VALIDATED, runner.iter)

    def before_train_iter(self, runner: Runner, *args: object, **kwargs: object) -> None:
        """Random numbers that follow from the seed, the iteration and the process."""
        seed_all(runner.seed, ITERATION, runner.iter, runner.rank)
