"""tools/convert_checkpoint.py and tools/publish_checkpoint.py."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tiny_run import call, exit_code, make_run
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


@pytest.mark.parametrize('content', [b'', b'<!DOCTYPE html>', b'PK\x03\x04 cut short'])
def test_a_wrong_file_leaves_nothing_behind(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'wrong.pth').write_bytes(content)
    assert exit_code('convert_checkpoint', tmp_path / 'wrong.pth', tmp_path / 'out.pth') == 2
    assert [path.name for path in tmp_path.iterdir()] == ['wrong.pth']
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_another_suffix_is_refused(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code('convert_checkpoint', source, source.with_name('out.bin')) == 2
    assert '.safetensors or .pth' in capsys.readouterr().err


def test_publishing_strips_all_but_weights_and_names_the_file_by_its_hash(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = make_run(tmp_path_factory.getbasetemp())
    path = Path(call('publish_checkpoint', run.checkpoint, tmp_path / 'demo.pth'))
    assert path.name == f'demo-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.pth'
    content = torch.load(path, weights_only=True)
    assert set(content) == {'state_dict', 'meta'}
    assert len(content['meta']['dataset_meta']['classes']) == 12
    assert content['meta']['vit5_dense']['pretrain_img_size'] == 64
    assert call('test', run.config, path, '--work-dir', tmp_path / 'work')['mIoU'] >= 0
