import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.multiprocessing
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS
from torch import Tensor, nn

from tiny_run import exit_code, scenes, write_config
from vit5_dense import ViT5
from vit5_dense.errors import UserError
from vit5_dense.hooks import ViT5NonFiniteHook
from vit5_dense.hooks.non_finite import first_bad_module, is_bad

MODULE = 'backbone.blocks.1.mlp.fc2'


@HOOKS.register_module(force=True)
class Poison(Hook):
    """From one iteration on, spoils what a module gives or the gradient that it gets."""

    def __init__(self, iteration: int, backward: bool) -> None:
        self.iteration, self.backward = iteration, backward

    def before_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter == self.iteration:
            runner.model.get_submodule(MODULE).register_forward_hook(self.spoil)

    def spoil(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        if not self.backward:
            return output.index_fill(1, torch.tensor([1]), float('inf'))
        if output.requires_grad:
            output.register_hook(lambda grad: grad * float('nan'))
        return output


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scenes(tmp_path_factory)


@pytest.mark.parametrize('accumulate', [1, 2])
@pytest.mark.parametrize('detector', [False, True], ids=['seg', 'det'])
@pytest.mark.parametrize('backward', [False, True], ids=['loss', 'gradient'])
def test_a_run_stops_and_names_module_and_pictures(
    tmp_path: Path,
    data: Path,
    capsys: pytest.CaptureFixture,
    backward: bool,
    detector: bool,
    accumulate: int,
) -> None:
    if detector:
        pytest.importorskip('mmcv._ext', reason='detection needs the compiled ops of mmcv')
    poison = f"[dict(type='Poison', iteration=2, backward={backward})]"
    extra = f'custom_hooks = _base_.custom_hooks + {poison}\ntrain_cfg.update(val_interval=100)\n'
    extra += f"default_hooks['checkpoint'].update(interval={accumulate}, save_best=None)\n"
    extra += f'optim_wrapper = dict(accumulative_counts={accumulate})\n'
    config = write_config(tmp_path, data, extra, detector=detector)
    work_dir = tmp_path / 'work'
    assert exit_code('train', config, '--work-dir', work_dir) == 2
    error = capsys.readouterr().err
    # Without accumulation the third iteration steps, with it the fourth.
    stopped = 2 + accumulate if backward else 3
    if backward:
        assert f'nearest to the loss is that of {MODULE}.bias' in error
    else:
        assert f'it began in the output of {MODULE}' in error
        assert 'loss is nan (' in error or 'loss is inf (' in error
    assert f'iteration {stopped}: ' in error
    pictures = re.findall(r'\S+/images/train/\S+\.png', error)
    batches = accumulate if backward else 1
    assert len(pictures) == 2 * batches
    last = f'iter_{(stopped - 1) // accumulate * accumulate}.pth'
    assert last in error
    assert max(path.name for path in work_dir.glob('*.pth')) == last
    state = torch.load(work_dir / last, weights_only=True)['state_dict']
    assert not is_bad(state)


class Model(BaseModel):
    """One weight times what comes in, which is the loss."""

    def __init__(self, backbone: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor, data_samples: Any = None, mode: str = '') -> Any:
        return {'loss': (self.weight * inputs).sum()}


def start(model: nn.Module, optim: OptimWrapper, folder: Path) -> Callable[[Tensor], None]:
    """A function that runs an iteration with the hook, as a runner does."""
    hook = ViT5NonFiniteHook()
    runner = SimpleNamespace(model=model, optim_wrapper=optim, iter=0, work_dir=str(folder))
    hook.before_train(runner)

    def iterate(inputs: Tensor) -> None:
        batch = {'inputs': inputs, 'data_samples': [SimpleNamespace(img_path='a.png')]}
        hook.before_train_iter(runner, runner.iter, batch)
        model.train_step(batch, optim)
        runner.iter += 1

    return iterate


def sgd(model: nn.Module, **options: Any) -> OptimWrapper:
    return OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.5), **options)


def test_finite_iterations_are_left_alone(tmp_path: Path) -> None:
    """Also where gradients are so large that the square in the norm is infinite."""
    model = Model()
    iterate = start(model, sgd(model, clip_grad={'max_norm': 1.0}), tmp_path)
    iterate(torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(model.weight.detach(), torch.tensor([0.7, 0.6]))
    iterate(torch.tensor([0.0, 1e30]))
    assert not is_bad(model.weight)


def test_the_weights_are_those_from_before_the_step(tmp_path: Path) -> None:
    model = Model()
    iterate = start(model, sgd(model), tmp_path)
    with pytest.raises(UserError, match=r'input of Model|the loss is nan'):
        iterate(torch.tensor([float('nan'), 1.0]))
    assert model.weight.tolist() == [1.0, 1.0]


class Halving(OptimWrapper):
    """Gradients that overflow, and a scaler that would skip the step."""

    scale = 4.0

    @property
    def loss_scaler(self) -> Any:
        return SimpleNamespace(get_scale=lambda: self.scale)

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        super().backward(loss * float('inf'))

    def step(self, **kwargs: Any) -> None:
        self.scale /= 4


def test_overflow_under_loss_scaling_is_the_scalers_until_it_has_no_room(tmp_path: Path) -> None:
    model = Model()
    optim = Halving(torch.optim.SGD(model.parameters(), lr=0.5))
    iterate = start(model, optim, tmp_path)
    for _ in range(2):  # scales 4 and 1
        iterate(torch.ones(2))
    with pytest.raises(UserError, match=r'1 of 1 gradients'):
        iterate(torch.ones(2))


def test_the_second_run_draws_the_same_numbers(tmp_path: Path) -> None:
    class Dicing(Model):
        def forward(self, inputs: Tensor, data_samples: Any = None, mode: str = '') -> Any:
            draws.append(torch.rand(1).item())
            return {'loss': (self.weight * inputs / 0).sum()}

    draws: list[float] = []
    model = Dicing()
    with pytest.raises(UserError):
        start(model, sgd(model), tmp_path)(torch.ones(2))
    assert len(draws) == 2
    assert draws[0] == draws[1]


def test_a_compiled_backbone_is_looked_into() -> None:
    backbone = ViT5({'embed_dims': 32, 'depth': 1, 'num_heads': 2}, 64, out_indices=(0,))
    backbone.compile(backend='eager', fullgraph=True)
    model = nn.ModuleDict({'backbone': backbone})
    x = torch.randn(1, 3, 64, 64)
    assert first_bad_module(model, lambda: backbone(x))[0] == ''
    backbone.blocks[0].attn.q_norm.weight.data.fill_(float('nan'))
    backbone(x)
    assert first_bad_module(model, lambda: backbone(x))[0] == 'input of backbone.blocks.0.attn.proj'


def one_rank(rank: int, folder: str) -> None:
    """Three iterations of which the last is bad for rank 1 only; the message goes to a file."""
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/meeting', rank=rank, world_size=2
    )
    model = Model()
    iterate = start(model, sgd(model), Path(folder))
    try:
        for inputs in (torch.ones(2), torch.ones(2), torch.full((2,), rank * float('inf'))):
            iterate(inputs.nan_to_num(0.0, posinf=float('inf')))
    except UserError as error:
        Path(folder, f'rank{rank}').write_text(str(error))
    torch.distributed.destroy_process_group()


def test_all_processes_stop_together(tmp_path: Path) -> None:
    torch.multiprocessing.start_processes(one_rank, (str(tmp_path),), 2, start_method='fork')
    texts = [(tmp_path / f'rank{rank}').read_text() for rank in (0, 1)]
    assert 'iteration 3: the loss of another process' in texts[0]
    assert 'iteration 3: the loss is nan (loss)' in texts[1]
