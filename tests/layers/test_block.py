"""The pre-norm block: LayerScale, drop path, MLP."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import oracle
from vit5_dense.layers import TokenLayout
from vit5_dense.layers.block import Block
from vit5_dense.layers.rope import token_rotation

GRID, LAYOUT = (3, 5), TokenLayout((3, 5), 4)
Fill = Callable[[nn.Module], nn.Module]


def run(block: Block, x: Tensor) -> Tensor:
    return block(x, token_rotation(LAYOUT, 16, (4, 4)), LAYOUT)


def expected_block(block: Block, x: Tensor, window: int | None = None) -> Tensor:
    angles = oracle.token_angles(16, GRID, (4, 4), 4)
    turns = torch.stack([oracle.rotation_matrix(angle) for angle in angles])
    return oracle.block(
        x.double(), dict(block.named_parameters()), '', 2, turns, oracle.visibility(GRID, 4, window)
    )


@pytest.mark.parametrize('window', [None, 2])
def test_block_against_the_oracle(randomised: Fill, window: int | None) -> None:
    block = randomised(Block(32, 2, window_size=window)).eval()
    x = torch.randn(2, 20, 32)
    torch.testing.assert_close(
        run(block, x), expected_block(block, x, window).float(), atol=1e-5, rtol=1e-5
    )


def test_parameters_are_those_of_the_reference() -> None:
    shapes = {name: tuple(param.shape) for name, param in Block(32, 2).named_parameters()}
    assert shapes == {
        'norm1.weight': (32,),
        'norm2.weight': (32,),
        'gamma_1': (32,),
        'gamma_2': (32,),
        'attn.qkv.weight': (96, 32),
        'attn.q_norm.weight': (16,),
        'attn.k_norm.weight': (16,),
        'attn.proj.weight': (32, 32),
        'attn.proj.bias': (32,),
        'mlp.fc1.weight': (128, 32),
        'mlp.fc1.bias': (128,),
        'mlp.fc2.weight': (32, 128),
        'mlp.fc2.bias': (32,),
    }


@pytest.mark.parametrize('init', [1e-4, 1.0])
def test_layer_scale_starts_at_its_initial_value(init: float) -> None:
    block = Block(32, 2, layer_scale_init=init)
    for gamma in (block.gamma_1, block.gamma_2):
        torch.testing.assert_close(gamma.data, torch.full((32,), init))
    torch.testing.assert_close(Block(32, 2).gamma_1.data, torch.full((32,), 1e-4))


def test_layer_scale_of_zero_is_identity(randomised: Fill) -> None:
    block, x = randomised(Block(32, 2)), torch.randn(2, 20, 32)
    block.gamma_1.data.zero_()
    block.gamma_2.data.zero_()
    assert torch.equal(run(block, x), x)


def test_drop_path_drops_whole_branches_of_a_sample_and_scales_the_kept(randomised: Fill) -> None:
    """At rate 3/4 a kept branch counts four times; of 256 equal samples all four cases occur."""
    block = randomised(Block(32, 2, drop_path=0.75)).train()
    x = torch.randn(1, 20, 32)
    with torch.no_grad():
        found = run(block, x.expand(256, -1, -1))
    cases = []
    for attn in (0.0, 4.0):
        for mlp in (0.0, 4.0):
            scaled = {name: param.detach() for name, param in block.named_parameters()}
            scaled['gamma_1'] = scaled['gamma_1'] * attn
            scaled['gamma_2'] = scaled['gamma_2'] * mlp
            angles = oracle.token_angles(16, GRID, (4, 4), 4)
            turns = torch.stack([oracle.rotation_matrix(angle) for angle in angles])
            cases.append(
                oracle.block(x.double(), scaled, '', 2, turns, oracle.visibility(GRID, 4, None))[0]
            )
    distance = (found.double()[:, None] - torch.stack(cases)).abs().amax((2, 3))
    nearest, case = distance.min(1)
    assert nearest.max() < 1e-4
    share = torch.bincount(case, minlength=4) / 256
    expected = torch.tensor([9 / 16, 3 / 16, 3 / 16, 1 / 16])
    torch.testing.assert_close(share, expected, atol=0.1, rtol=0)
    assert (share > 0).all()


def test_drop_path_is_off_in_eval(randomised: Fill) -> None:
    block, x = randomised(Block(32, 2, drop_path=0.75)).eval(), torch.randn(2, 20, 32)
    torch.testing.assert_close(
        run(block, x), expected_block(block, x).float(), atol=1e-5, rtol=1e-5
    )


def test_without_gradients_the_order_in_memory_does_not_matter(randomised: Fill) -> None:
    block, x = randomised(Block(32, 2)), torch.randn(20, 2, 32).transpose(0, 1)
    wanted = run(block, x)
    with torch.no_grad():
        torch.testing.assert_close(run(block, x), wanted)
