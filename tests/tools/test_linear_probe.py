"""tools/linear_probe.py."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from timm.data import resolve_data_config

from tiny import TINY
from tiny_run import call, exit_code, load_tool
from vit5_dense.timm_models import ViT5Classifier, default_cfgs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six and four pictures of two classes that colour tells apart."""
    rng = np.random.default_rng(0)
    for split, number in (('train', 6), ('val', 4)):
        for name, color in (('blue', (20, 20, 200)), ('red', (200, 20, 20))):
            target = tmp_path / split / name
            target.mkdir(parents=True)
            for i in range(number):
                noisy = np.add(color, rng.normal(0, 20, (32, 32, 3))).clip(0, 255)
                Image.fromarray(noisy.astype(np.uint8)).save(target / f'{i}.png')
    return tmp_path


def test_separable_classes_are_separated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = call(
        'linear_probe', 'vit5_tiny_patch16_224', folder, '--workers', 0, '--pool', 'avg'
    )
    assert accuracy == 100
    assert 'top-1: 100.00 % of 8 pictures, 2 classes' in capsys.readouterr().out


def test_the_classifier_is_at_the_optimum_of_its_loss() -> None:
    import torch

    tool = load_tool('linear_probe')
    features, labels = torch.randn(40, 3), torch.randint(2, (40,))
    classifier = tool.fit(features, labels, 2, 1e-2)
    loss = torch.nn.functional.cross_entropy(classifier(features), labels)
    (loss + 1e-2 * classifier.weight.square().sum()).backward()
    assert classifier.weight.grad.abs().max() < 1e-3


@pytest.mark.parametrize(
    'option',
    [
        ('--batch-size', 0),
        ('--batch-size', -4),
        ('--workers', -1),
        ('--decay', -1),
        ('--decay', 'nan'),
        ('--device', 'nope'),
        ('--checkpoint', 'nope.pth'),
    ],
    ids=lambda option: ' '.join(map(str, option)),
)
def test_a_value_that_cannot_be_is_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, object]
) -> None:
    assert exit_code('linear_probe', 'vit5_tiny_patch16_224', folder, *option) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ')
    assert error.count('\n') == 1
    assert option[0].removeprefix('--check') in error or 'nope' in error


@pytest.mark.parametrize(
    ('text', 'part'),
    [
        ("dict(type='X')", 'backbone'),
        ("dict(type='X', backbone=dict(type='ResNet', depth=50))", 'ResNet'),
        ("dict(type='X', backbone=dict(type='ViT5', arch='giant'))", 'giant'),
        ("dict(type='X', backbone=dict(type='ViT5', arch='ti', in_channels=4))", 'in_channels=4'),
    ],
)
def test_a_config_without_a_vit5_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, part: str
) -> None:
    (folder / 'mine.py').write_text(f'model = {text}\n')
    assert exit_code('linear_probe', folder / 'mine.py', folder) == 2
    error = capsys.readouterr().err
    assert str(folder / 'mine.py') in error
    assert part in error


def test_the_sizes_of_a_config_s_weights_are_kept_and_pictures_are_made_for_them(
    tmp_path: Path,
) -> None:
    text = "dict(type='ViT5', arch='ti', pretrain_img_size=288, patch_size=32, num_registers=9)"
    (tmp_path / 'mine.py').write_text(f"model = dict(type='X', backbone={text})\n")
    tool = load_tool('linear_probe')
    model = tool.build_model(tool.parse_args([str(tmp_path / 'mine.py'), str(tmp_path)]))
    assert model.patch_embed.proj.weight.shape[2:] == (32, 32)
    assert model.pos_embed.shape[1] == 9 * 9
    assert model.num_registers == 9
    (tmp_path / 'train' / 'red').mkdir(parents=True)
    Image.new('RGB', (500, 400)).save(tmp_path / 'train' / 'red' / 'a.png')
    picture, _ = tool.open_split(tmp_path / 'train', model)[0]
    assert picture.shape == (3, 288, 288)


@pytest.mark.parametrize('arch', ['base_patch16_224', 'base_patch16_384'])
def test_a_config_s_pictures_are_those_of_the_model_of_the_same_weights(arch: str) -> None:
    side = int(arch[-3:])
    ours = resolve_data_config({}, model=ViT5Classifier(TINY, side))
    assert ours == resolve_data_config({}, pretrained_cfg=default_cfgs[f'vit5_{arch}'])
    assert ours['crop_pct'] == {224: 0.9, 384: 1.0}[side]


@pytest.mark.parametrize('workers', [0, 1])
def test_a_picture_that_cannot_be_read_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    (folder / 'train' / 'red' / '3.png').write_text('no picture')
    argv = ['vit5_tiny_patch16_224', folder, '--workers', workers]
    assert exit_code('linear_probe', *argv) == 2
    error = capsys.readouterr().err.splitlines()
    assert f'{folder}/train/red/3.png' in error[-1]


def test_a_wrong_layout_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code('linear_probe', 'vit5_tiny_patch16_224', folder / 'train') == 2
    assert 'CLASS/*.jpg' in capsys.readouterr().err
    (folder / 'val' / 'red').rename(folder / 'val' / 'green')
    assert exit_code('linear_probe', 'vit5_tiny_patch16_224', folder, '--workers', 0) == 2
    assert 'green' in capsys.readouterr().err
