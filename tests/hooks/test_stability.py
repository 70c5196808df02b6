import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from PIL import Image
from torch import Tensor, nn

from tiny_run import call, scenes, write_config
from vit5_dense import ViT5
from vit5_dense.hooks import ViT5StabilityHook
from vit5_dense.hooks.stability import largest_logit, token_norms
from vit5_dense.layers import TokenLayout


class Model(BaseModel):
    """A backbone and a head."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Conv2d(32, 2, 1)

    def forward(self, inputs: Tensor, mode: str = '') -> dict[str, Tensor]:
        return {'loss': self.head(self.backbone(inputs)[-1]).square().mean()}


class Trial:
    """Iterations of a model with the hook, as a runner has them."""

    def __init__(self, backbone: nn.Module, interval: int = 1, accumulate: int = 1) -> None:
        self.model = Model(backbone)
        self.optim = OptimWrapper(torch.optim.SGD(self.model.parameters(), lr=0.0), accumulate)
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.hook = ViT5StabilityHook(interval)
        self.iter = 0
        self.visualizer = SimpleNamespace(add_scalars=self.log)
        self.optim_wrapper = self.optim
        self.hook.before_train(self)

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def run(self, iterations: int = 1) -> dict[str, float]:
        """All figures logged so far."""
        for _ in range(iterations):
            self.hook.before_train_iter(self, self.iter)
            torch.manual_seed(self.iter)
            self.model.train_step({'inputs': torch.randn(2, 3, 64, 96)}, self.optim)
            self.hook.after_train_iter(self, self.iter)
            self.iter += 1
        return {key: value for _, values in self.logged for key, value in values.items()}


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every warning from here on."""
    texts: list[str] = []
    monkeypatch.setattr(
        'vit5_dense.hooks.stability.print_log', lambda text, **options: texts.append(text)
    )
    return texts


def test_figures_are_those_of_the_model(make_vit5: Callable[..., ViT5]) -> None:
    trial = Trial(make_vit5())
    trial.optim.zero_grad = lambda: None  # keep what the step used
    found = trial.run()
    blocks = trial.model.backbone.blocks
    parts = [f'block{i}' for i in range(3)]
    kinds = ('layer_scale', 'attention_logit')
    assert set(found) == {
        *(f'{kind}/{part}' for kind in kinds for part in parts),
        *(f'grad_norm/{part}' for part in ('stem', *parts, 'heads')),
        *(f'token_norm/{kind}' for kind in ('cls', 'patches', 'registers')),
        'patch_outlier',
    }
    gammas = [*blocks[1].gamma_1.tolist(), *blocks[1].gamma_2.tolist()]
    assert math.isclose(found['layer_scale/block1'], sum(map(abs, gammas)) / 64, rel_tol=1e-5)
    grads = torch.cat([param.grad.flatten() for param in blocks[1].parameters()])
    assert math.isclose(found['grad_norm/block1'], grads.norm().item(), rel_tol=1e-4)
    grads = torch.cat([param.grad.flatten() for param in trial.model.head.parameters()])
    assert math.isclose(found['grad_norm/heads'], grads.norm().item(), rel_tol=1e-4)


def test_the_bound_holds_for_the_logits_and_is_near(
    make_vit5: Callable[..., ViT5], sdpa_calls: list[dict[str, Any]]
) -> None:
    model = make_vit5(rope_scaling='extrapolate')
    outputs = []
    attention = model.blocks[0].attn
    attention.qkv.register_forward_hook(lambda module, args, output: outputs.append(output))
    model(torch.randn(1, 3, 64, 96))
    q, k = sdpa_calls[0]['q'], sdpa_calls[0]['k']
    largest = (q @ k.transpose(2, 3)).abs().max().item() / 4  # heads of 16
    bound = largest_logit(attention, outputs[0]).item()
    assert largest <= bound <= 2 * largest


def test_lengths_of_each_kind_of_token() -> None:
    layout = TokenLayout((1, 2), 1)
    tokens = torch.tensor([[[3.0, 4.0], [1.0, 0.0], [0.0, 3.0], [6.0, 8.0]]])
    norms = {key: value.item() for key, value in token_norms(tokens, layout).items()}
    assert norms == {
        'token_norm/cls': 5.0,
        'token_norm/patches': 2.0,
        'token_norm/registers': 10.0,
        'patch_outlier': 1.5,
    }


def test_nothing_is_watched_between_samples(make_vit5: Callable[..., ViT5]) -> None:
    trial = Trial(make_vit5(), interval=3)

    def hooks() -> int:
        return sum(len(module._forward_hooks) for module in trial.model.modules())

    trial.run(2)
    assert hooks() == 0
    assert trial.logged == []
    trial.run()
    assert {step for step, _ in trial.logged} == {3}
    assert hooks() == 0


def test_gradients_wait_for_the_step(make_vit5: Callable[..., ViT5]) -> None:
    trial = Trial(make_vit5(), interval=3, accumulate=2)
    trial.run(4)
    steps = {key.split('/')[0]: step for step, values in trial.logged for key in values}
    assert (steps['layer_scale'], steps['grad_norm']) == (3, 4)


@pytest.mark.parametrize(
    'options', [{'with_cp': True}, {'drop_path_rate': 0.5}, {'window_size': 2}]
)
def test_other_ways_to_run_give_all_figures(
    make_vit5: Callable[..., ViT5], options: dict[str, Any]
) -> None:
    found = Trial(make_vit5(**options)).run()
    assert {'attention_logit/block2', 'token_norm/cls', 'grad_norm/stem'} <= set(found)


def test_frozen_parts_have_no_gradient_to_show(make_vit5: Callable[..., ViT5]) -> None:
    found = Trial(make_vit5(frozen_stages=1)).run()
    shown = {key for key in found if key.startswith('grad_norm')}
    assert shown == {'grad_norm/block1', 'grad_norm/block2', 'grad_norm/heads'}


def test_a_compiled_backbone_is_not_compiled_again(make_vit5: Callable[..., ViT5]) -> None:
    graphs = []

    def count(graph: nn.Module, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    backbone = make_vit5()
    backbone.compile(backend=count, fullgraph=True)
    trial = Trial(backbone, interval=2)
    found = trial.run(4)
    assert len(graphs) == 1
    assert {'layer_scale/block0', 'grad_norm/block0'} <= set(found)


def test_a_limit_is_told_of_once_with_the_remedy(
    make_vit5: Callable[..., ViT5], warned: list[str]
) -> None:
    backbone = make_vit5()
    backbone.blocks[1].gamma_1.data.fill_(50.0)
    backbone.blocks[2].attn.q_norm.weight.data.fill_(1000.0)
    Trial(backbone).run(2)
    (scale,) = [text for text in warned if 'layer_scale' in text]
    assert 'iteration 1: layer_scale/block1 is ' in scale
    assert 'layer_scale_init' in scale
    (logit,) = [text for text in warned if 'attention_logit' in text]
    assert 'attention_logit/block2' in logit
    assert 'q_norm' in logit


def test_a_healthy_model_is_not_complained_of(
    make_vit5: Callable[..., ViT5], warned: list[str]
) -> None:
    Trial(ViT5({'embed_dims': 32, 'depth': 3, 'num_heads': 2}, 64, out_indices=(2,))).run()
    assert warned == []


def test_another_backbone_is_left_alone(warned: list[str]) -> None:
    class Other(nn.Conv2d):
        def forward(self, x: Tensor) -> list[Tensor]:
            return [super().forward(x)]

    assert Trial(Other(3, 32, 16)).run() == {}
    assert 'no ViT5' in warned[0]


def test_a_run_has_the_curves_in_its_report(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hooks = "custom_hooks = [dict(type='ViT5StabilityHook', interval=1)]\n"
    config = write_config(tmp_path, scenes(tmp_path_factory), hooks)
    work_dir = tmp_path / 'work'
    call('train', config, '--work-dir', work_dir)
    (file,) = work_dir.glob('*/vis_data/scalars.json')
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for name in ('layer_scale/block1', 'token_norm/cls', 'grad_norm/stem'):
        assert [row['step'] for row in rows if name in row] == [1, 2, 3, 4]
    log = ''.join(path.read_text() for path in work_dir.glob('*/*.log'))
    assert 'layer_scale/' not in log, 'the log stays short'
    with Image.open(work_dir / 'report.png') as report:
        assert report.size[1] == 4 * 324  # curves twice, two rows of pictures
