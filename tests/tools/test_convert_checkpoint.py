"""tools/convert_checkpoint.py and tools/publish_checkpoint.py."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tiny_run import call, exit_code, trained
from vit5_dense import ViT5

ARCH = {'embed_dims': 32, 'depth': 2, 'num_heads': 2}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A bare file of a backbone at a grid of 4."""
    torch.save(ViT5(ARCH, 64, out_indices=(1,)).state_dict(), tmp_path / 'bare.pth')
    return tmp_path / 'bare.pth'


def test_a_file_is_written_with_its_account(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dst = source.with_name('out.safetensors')
    account = call('convert_checkpoint', source, dst, '--prefix', 'backbone.', '--dtype', 'fp16')
    out = capsys.readouterr().out
    assert f'{len(account.loaded)} of {len(account.loaded)} tensors (100 %), bare' in out
    with safe_open(dst, 'pt') as file:
        assert file.metadata()['img_size'] == '64'
        assert all(key.startswith('backbone.') for key in file.keys())  # noqa: SIM118
        assert file.get_tensor('backbone.cls_token').dtype == torch.float16


def test_nothing_is_overwritten_without_force(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dst = source.with_name('out.pth')
    dst.write_text('precious')
    assert exit_code('convert_checkpoint', source, dst) == 2
    assert dst.read_text() == 'precious'
    assert '--force' in capsys.readouterr().err
    assert exit_code('convert_checkpoint', source, dst, '--force') == 0
    assert torch.load(dst, weights_only=True)['meta']['source'] == 'bare.pth'


class Harmful:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.path,)


def wrong_file(kind: str, folder: Path) -> Path:
    """A file that somebody may take for a ViT-5 checkpoint."""
    path = folder / 'wrong.pth'
    good = ViT5(ARCH, 64, out_indices=(1,)).state_dict()
    if kind == 'empty':
        path.write_bytes(b'')
    elif kind == 'web page':
        path.write_text('<!DOCTYPE html><html>Not found</html>')
    elif kind == 'text':
        path.write_text('version https://git-lfs.github.com/spec/v1')
    elif kind.startswith('truncated'):
        save_file(good, path) if kind.endswith('safetensors') else torch.save(good, path)
        path.write_bytes(path.read_bytes()[:-1000])
    elif kind == 'harmful':
        torch.save({'model': good, 'extra': Harmful(folder / 'harm')}, path)
    else:
        content = {
            'resnet': {'conv1.weight': torch.ones(2), 'layer1.0.bn1.weight': torch.ones(2)},
            'dinov2': {
                **{key: good[key] for key in ('cls_token', 'pos_embed')},
                'blocks.0.ls1.gamma': torch.ones(32),
                'mask_token': torch.ones(1, 32),
            },
            'list': [1, 2],
            'no tensors': {'epoch': 3},
            'row for CLS': {**good, 'pos_embed': torch.zeros(1, 17, 32)},
            'a block too few': {k: v for k, v in good.items() if 'blocks.0.mlp' not in k},
            'an unknown key': {**good, 'blocks.0.adapter.weight': torch.ones(2)},
        }[kind]
        torch.save(content, path)
    return path


@pytest.mark.parametrize(
    'kind',
    [
        'empty',
        'web page',
        'text',
        'truncated',
        'truncated safetensors',
        'harmful',
        'resnet',
        'dinov2',
        'list',
        'no tensors',
        'row for CLS',
        'a block too few',
        'an unknown key',
    ],
)
def test_a_wrong_file_is_named_and_leaves_nothing_behind(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = wrong_file(kind, tmp_path)
    assert exit_code('convert_checkpoint', path, tmp_path / 'out.pth') == 2
    assert [file.name for file in tmp_path.iterdir()] == ['wrong.pth']
    lines = capsys.readouterr().err.splitlines()
    assert str(path) in lines[0]
    assert len(lines) <= 20


def test_another_suffix_is_refused(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code('convert_checkpoint', source, source.with_name('out.bin')) == 2
    assert '.safetensors or .pth' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('dst', 'options', 'part'),
    [
        ('out.pth', ['--to-img-size', 40], '40 is no multiple of the patch size 16'),
        ('out.pth', ['--to-img-size', 0], '0 is no multiple'),
        ('out.pth', ['--to-img-size', -16], '-16 is no multiple'),
        ('bare.pth/out.pth', [], 'bare.pth cannot be made'),
        ('folder.pth', [], 'folder.pth exists'),
        ('folder.pth', ['--force'], 'folder.pth cannot be written'),
        ('folder.safetensors', ['--force'], 'folder.safetensors cannot be written'),
    ],
)
def test_values_that_cannot_be_are_refused_in_one_line(
    source: Path,
    capsys: pytest.CaptureFixture[str],
    dst: str,
    options: list[object],
    part: str,
) -> None:
    for suffix in ('pth', 'safetensors'):
        source.with_name(f'folder.{suffix}').mkdir()
    before = set(source.parent.iterdir())
    assert exit_code('convert_checkpoint', source, source.parent / dst, *options) == 2
    error = capsys.readouterr().err
    assert part in error
    assert error.count('\n') == 1
    assert set(source.parent.iterdir()) == before


@pytest.fixture
def full_disk(source: Path) -> Iterator[None]:
    """Once the source is there, as a run saves it, no file can grow beyond 10 kB."""
    resource = pytest.importorskip('resource', reason='not on Windows')
    torch.save({'state_dict': torch.load(source, weights_only=True)}, source)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize(
    ('tool', 'suffix'),
    [
        ('convert_checkpoint', '.pth'),
        ('convert_checkpoint', '.safetensors'),
        ('publish_checkpoint', '.pth'),
    ],
)
@pytest.mark.usefixtures('full_disk')
def test_a_full_disk_is_named_and_keeps_no_half_file(
    source: Path, capsys: pytest.CaptureFixture[str], tool: str, suffix: str
) -> None:
    assert exit_code(tool, source, source.with_name(f'out{suffix}')) == 2
    error = capsys.readouterr().err
    assert 'cannot be written: ' in error
    assert error.count('\n') == 1
    assert list(source.parent.iterdir()) == [source]


@pytest.mark.parametrize(
    ('src', 'dst', 'part'),
    [
        ('trained.pth', 'trained.pth/out.pth', 'trained.pth cannot be made'),
        ('trained.pth', 'out.safetensors', 'must end in .pth'),
        ('bare.pth', 'out.pth', 'has no state_dict'),
        ('nope.pth', 'out.pth', 'nope.pth does not exist'),
    ],
)
def test_what_cannot_be_published_is_named_in_one_line(
    source: Path, capsys: pytest.CaptureFixture[str], src: str, dst: str, part: str
) -> None:
    torch.save({'state_dict': {'a': torch.ones(2)}}, source.with_name('trained.pth'))
    torch.save({'a': torch.ones(2)}, source)
    before = set(source.parent.iterdir())
    assert exit_code('publish_checkpoint', source.parent / src, source.parent / dst) == 2
    error = capsys.readouterr().err
    assert part in error
    assert error.count('\n') == 1
    assert set(source.parent.iterdir()) == before


def test_publishing_strips_all_but_weights_and_names_the_file_by_its_hash(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = trained(tmp_path_factory)
    path = Path(call('publish_checkpoint', run.checkpoint, tmp_path / 'demo.pth'))
    assert path.name == f'demo-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.pth'
    content = torch.load(path, weights_only=True)
    assert set(content) == {'state_dict', 'meta'}
    assert len(content['meta']['dataset_meta']['classes']) == 12
    assert content['meta']['vit5_dense']['pretrain_img_size'] == 64
    assert call('test', run.config, path, '--work-dir', tmp_path / 'work')['mIoU'] >= 0
