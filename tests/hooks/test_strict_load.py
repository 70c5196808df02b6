"""What ``load_from`` and ``resume`` do with a file that does not fit."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vit5_dense import ViT5StrictLoadHook
from vit5_dense.checkpoint import CheckpointError


class Segmentor(nn.Module):
    """A backbone and a head of some number of classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = nn.Linear(4, 4)
        self.head = nn.Linear(4, classes)


def load(state: dict[str, torch.Tensor], resume: bool, log: list[str] | None = None) -> dict:
    """Run the hook on a checkpoint for a segmentor of 3 classes; returns what is left to load."""
    runner = SimpleNamespace(model=Segmentor(3), _resume=resume, _load_from='a.pth')
    checkpoint = {'state_dict': dict(state)}
    ViT5StrictLoadHook().after_load_checkpoint(runner, checkpoint)
    return checkpoint['state_dict']


def test_a_file_that_fits_is_left_alone() -> None:
    state = Segmentor(3).state_dict()
    assert load(state, resume=True).keys() == state.keys()


def test_fine_tuning_on_other_classes_keeps_the_backbone_and_lists_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        'vit5_dense.hooks.strict_load.print_log', lambda text, logger: lines.append(text)
    )
    left = load(Segmentor(150).state_dict(), resume=False)
    assert set(left) == {'backbone.weight', 'backbone.bias'}
    assert len(lines) == 1
    assert '2 of 4 tensors' in lines[0]
    assert 'head.weight is (150, 4), wanted (3, 4)' in lines[0]


def test_a_run_resumes_only_from_what_fits_whole() -> None:
    with pytest.raises(CheckpointError, match=r'head\.weight is'):
        load(Segmentor(150).state_dict(), resume=True)


@pytest.mark.parametrize('fault', ['missing', 'misshapen', 'unknown'])
def test_fine_tuning_needs_the_whole_backbone(fault: str) -> None:
    state = Segmentor(3).state_dict()
    if fault == 'missing':
        del state['backbone.bias']
    elif fault == 'misshapen':
        state['backbone.bias'] = torch.zeros(5)
    else:
        state['backbone.blocks.7'] = torch.zeros(5)
    with pytest.raises(CheckpointError, match=f'{fault}: backbone'):
        load(state, resume=False)
