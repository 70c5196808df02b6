"""Against a small stand-in for detectron2, and once against the library where it is there."""

import abc
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tiny import TINY, Make, picture
from tiny_run import ENV, REPO
from vit5_dense import SimplePyramid
from vit5_dense.checkpoint import CheckpointError

ADAPTERS = 'vit5_dense.integrations.detectron2'
SIZES = {'arch': TINY, 'pretrain_img_size': 64}
Fill = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class ShapeSpec:
    """As in detectron2.layers."""

    channels: int | None = None
    height: int | None = None
    width: int | None = None
    stride: int | None = None


class Backbone(nn.Module, metaclass=abc.ABCMeta):
    """As in detectron2.modeling.backbone."""

    @abc.abstractmethod
    def forward(self) -> Any: ...

    @property
    def size_divisibility(self) -> int:
        return 0

    @property
    def padding_constraints(self) -> dict[str, int]:
        return {}

    def output_shape(self) -> dict[str, ShapeSpec]:
        raise NotImplementedError


@pytest.fixture
def adapters(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module under test upon the stand-in."""
    content = {'layers': {'ShapeSpec': ShapeSpec}, 'modeling.backbone': {'Backbone': Backbone}}
    for name in ('', 'layers', 'modeling', 'modeling.backbone'):
        module = ModuleType(f'detectron2.{name}'.rstrip('.'))
        vars(module).update(content.get(name, {}))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules.pop(ADAPTERS, None)
    yield importlib.import_module(ADAPTERS)
    del sys.modules[ADAPTERS]


def test_importing_the_package_alone_does_not_need_detectron2() -> None:
    code = (
        'import sys; sys.modules["detectron2"] = None; import vit5_dense, vit5_dense.integrations\n'
        f'assert "{ADAPTERS}" not in sys.modules\n'
        f'try: import {ADAPTERS}\n'
        'except ModuleNotFoundError as error: print(error)'
    )
    done = subprocess.run([sys.executable, '-c', code], env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'detectron2' in done.stdout


@pytest.mark.parametrize(
    ('options', 'names'),
    [
        ({}, ['block2']),
        ({'out_indices': (0, 2)}, ['block0', 'block2']),
        ({'out_indices': (-2,)}, ['block1']),
    ],
)
def test_maps_are_named_after_their_blocks(
    adapters: ModuleType, options: dict[str, Any], names: list[str]
) -> None:
    backbone = adapters.ViT5Backbone(**{**SIZES, 'out_indices': (2,), **options})
    assert backbone.output_shape() == {name: ShapeSpec(channels=32, stride=16) for name in names}
    maps = backbone(picture(50, 83, batch=2))
    assert {name: tuple(x.shape) for name, x in maps.items()} == dict.fromkeys(names, (2, 32, 4, 6))


def test_the_stride_is_that_of_the_patches(adapters: ModuleType) -> None:
    backbone = adapters.ViT5Backbone(**SIZES, out_indices=(2,), patch_size=8)
    assert backbone.output_shape() == {'block2': ShapeSpec(channels=32, stride=8)}
    pyramid = adapters.ViT5SimplePyramid(backbone, 16, strides=(4, 8, 16))
    shapes = {name: tuple(x.shape) for name, x in pyramid(picture(50, 83)).items()}
    assert shapes == {'p2': (1, 16, 14, 22), 'p3': (1, 16, 7, 11), 'p4': (1, 16, 4, 6)}


def test_levels_have_the_names_strides_and_sizes_that_heads_count_on(adapters: ModuleType) -> None:
    pyramid = adapters.ViT5SimplePyramid(
        adapters.ViT5Backbone(**SIZES, out_indices=(2,)), out_channels=24
    )
    strides = {'p2': 4, 'p3': 8, 'p4': 16, 'p5': 32, 'p6': 64}
    assert pyramid.output_shape() == {
        name: ShapeSpec(channels=24, stride=stride) for name, stride in strides.items()
    }
    assert isinstance(pyramid, Backbone)
    levels = pyramid(picture(50, 83, batch=2))
    assert {name: tuple(x.shape) for name, x in levels.items()} == {
        'p2': (2, 24, 16, 24),
        'p3': (2, 24, 8, 12),
        'p4': (2, 24, 4, 6),
        'p5': (2, 24, 2, 3),
        'p6': (2, 24, 1, 2),
    }


def test_the_numbers_are_those_of_vit5_and_simple_pyramid(
    adapters: ModuleType, make_vit5: Make, randomised: Fill
) -> None:
    """The last of several maps is taken."""
    model, neck = make_vit5(out_indices=(1, 2)), randomised(SimplePyramid(32, 16, (4, 16, 32)))
    backbone = adapters.ViT5Backbone(**SIZES, out_indices=(1, 2))
    pyramid = adapters.ViT5SimplePyramid(backbone, 16, (4, 16, 32)).eval()
    backbone.vit5.load_state_dict(model.state_dict())
    pyramid.pyramid.load_state_dict(neck.state_dict())
    x = picture(50, 83)
    maps = model(x)
    assert_close(backbone(x), dict(zip(('block1', 'block2'), maps, strict=True)), rtol=0, atol=0)
    wanted = dict(zip(('p2', 'p4', 'p5'), neck(maps[-1:]), strict=True))
    assert_close(pyramid(x), wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ('options', 'multiple', 'side'),
    [({}, 64, 0), ({'square_pad': 1024}, 64, 1024), ({'strides': (8, 16, 32)}, 32, 0)],
)
def test_pictures_are_padded_to_the_coarsest_stride_and_to_squares_if_asked(
    adapters: ModuleType, options: dict[str, Any], multiple: int, side: int
) -> None:
    net = adapters.ViT5Backbone(**SIZES, out_indices=(2,))
    pyramid = adapters.ViT5SimplePyramid(net, **options)
    assert pyramid.size_divisibility == multiple
    assert pyramid.padding_constraints == {'size_divisibility': multiple, 'square_size': side}


@pytest.mark.parametrize('option', ['pretrained', 'window', 'init_cfg'])
def test_an_unknown_option_raises(adapters: ModuleType, option: str) -> None:
    with pytest.raises(TypeError, match=option):
        adapters.ViT5Backbone(**SIZES, out_indices=(2,), **{option: 3})


def test_a_checkpoint_is_loaded_whole_or_refused(
    adapters: ModuleType, make_vit5: Make, tmp_path: Path
) -> None:
    path, wrong, other = (tmp_path / f'{name}.pth' for name in ('good', 'resnet', 'deep'))
    weights = make_vit5(out_indices=(2,)).state_dict()
    torch.save({'model': weights}, path)
    torch.save({'conv1.weight': torch.ones(2)}, wrong)
    torch.save({key: value for key, value in weights.items() if 'blocks.1.' not in key}, other)
    options = {**SIZES, 'out_indices': (2,)}
    loaded = adapters.ViT5Backbone(str(path), **options).vit5.state_dict()
    assert_close(dict(loaded), dict(weights), rtol=0, atol=0)
    for file in (wrong, other, tmp_path / 'nope.pth'):
        with pytest.raises(CheckpointError, match=file.name):
            adapters.ViT5Backbone(str(file), **options)
    fresh = adapters.ViT5Backbone(**options).vit5.state_dict()
    assert not torch.equal(fresh['pos_embed'], weights['pos_embed'])


@pytest.mark.parametrize(
    ('name', 'blocks', 'factor'),
    [
        ('backbone.net.vit5.patch_embed.proj.weight', 3, 0.0625),
        ('backbone.net.vit5.pos_embed', 3, 0.0625),
        ('backbone.net.vit5.cls_token', 3, 0.0625),
        ('backbone.net.vit5.reg_token', 12, 0.5**13),
        ('backbone.net.vit5.blocks.0.attn.qkv.weight', 3, 0.125),
        ('backbone.net.vit5.blocks.1.gamma_1', 3, 0.25),
        ('backbone.net.vit5.blocks.2.norm1.weight', 3, 0.5),
        ('backbone.net.vit5.blocks.11.mlp.fc1.bias', 12, 0.5),
        ('backbone.net.vit5.norm.weight', 3, 1.0),
        ('backbone.pyramid.levels.0.0.weight', 3, 1.0),
        ('proposal_generator.rpn_head.conv.weight', 3, 1.0),
        ('roi_heads.box_head.blocks.1.weight', 3, 1.0),
        ('backbone.bottom_up.vit5.blocks.1.gamma_1', 3, 0.25),  # elsewhere in a detector
        ('module.backbone.vit5.pos_embed', 3, 0.0625),
    ],
)
def test_rates_shrink_by_block(adapters: ModuleType, name: str, blocks: int, factor: float) -> None:
    assert adapters.get_vit5_lr_decay_rate(name, 0.5, blocks) == factor
    assert adapters.get_vit5_lr_decay_rate(name, num_layers=blocks) == 1.0


@pytest.mark.parametrize('part', ['adapter.weight', 'blocks.3.gamma_1', 'levels.0.weight'])
def test_a_parameter_that_the_backbone_does_not_have_raises(
    adapters: ModuleType, part: str
) -> None:
    with pytest.raises(ValueError, match=part):
        adapters.get_vit5_lr_decay_rate(f'backbone.net.vit5.{part}', 0.5, 3)


def test_every_parameter_of_the_pyramid_has_a_rate(adapters: ModuleType) -> None:
    net = adapters.ViT5Backbone(**SIZES, out_indices=(2,))
    detector = nn.ModuleDict({'backbone': adapters.ViT5SimplePyramid(net, 16)})
    rates = {
        name: adapters.get_vit5_lr_decay_rate(name, 0.5, 3)
        for name, _ in detector.named_parameters()
    }
    assert sorted(set(rates.values())) == [0.0625, 0.125, 0.25, 0.5, 1.0]
    assert {name for name, rate in rates.items() if rate == 1} == {
        name for name in rates if name.startswith('backbone.pyramid.')
    }


def test_the_recipe_trains_and_predicts_with_detectron2() -> None:
    config = pytest.importorskip(
        'detectron2.config', reason='detectron2 is not installed', exc_type=ImportError
    )
    events = pytest.importorskip('detectron2.utils.events', exc_type=ImportError)
    structures = pytest.importorskip('detectron2.structures', exc_type=ImportError)
    cfg = config.LazyConfig.load(str(REPO / 'configs/detectron2/mask_rcnn_vit5_b_coco.py'))
    cfg.model.backbone.net.update(arch='ti', checkpoint=None)
    cfg.model.backbone.square_pad = 256
    cfg.model.roi_heads.batch_size_per_image = 16
    cfg.model.proposal_generator.post_nms_topk = (50, 20)
    model = config.instantiate(cfg.model)
    truth = structures.Instances((200, 180))
    truth.gt_boxes = structures.Boxes(torch.tensor([[10.0, 10, 90, 120]]))
    truth.gt_classes = torch.tensor([3])
    truth.gt_masks = structures.PolygonMasks([[[10.0, 10, 90, 10, 90, 120, 10, 120]]])
    image = torch.randint(0, 255, (3, 200, 180)).float()
    batch = [{'image': image, 'height': 400, 'width': 360, 'instances': truth}]

    padded = model.preprocess_image(batch)
    assert padded.tensor.shape == (1, 3, 256, 256)
    with events.EventStorage():
        losses = model(batch)
    assert set(losses) == {
        f'loss_{kind}' for kind in ('cls', 'box_reg', 'mask', 'rpn_cls', 'rpn_loc')
    }
    assert all(loss.isfinite() for loss in losses.values())
    sum(losses.values()).backward()
    assert [name for name, param in model.named_parameters() if param.grad is None] == []

    cfg.optimizer.params.model = model
    rates = {group['lr'] for group in config.instantiate(cfg.optimizer).param_groups}
    assert sorted(rates) == pytest.approx([1e-4 * 0.7**n for n in range(13, -1, -1)])

    model.roi_heads.box_predictor.test_score_thresh = 0.0
    with torch.no_grad():
        found = model.eval()(batch)[0]['instances']
    assert found.image_size == (400, 360)
    assert len(found) > 0
    assert found.pred_masks.shape == (len(found), 400, 360)
