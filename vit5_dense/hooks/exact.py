"""Resuming that equals never having stopped."""

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..exact import ITERATION, Continued, NumberedBatches, seed_all


@HOOKS.register_module()
class ViT5ExactHook(Hook):
    """Starts the loader where the run stands, and each iteration with random numbers of its own.

    For loops by iteration over a loader from ``vit5_dense.exact.exact_loader``.
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

    def before_train_iter(self, runner: Runner, *args: object, **kwargs: object) -> None:
        """Random numbers that follow from the seed, the iteration and the process."""
        seed_all(runner.seed, ITERATION, runner.iter, runner.rank)
