import json
from pathlib import Path

import pytest

from tiny_run import DEMO, call, exit_code

FAST = ('--rounds', 2, '--warmup', 1)


def test_backbones_are_compared_in_every_mode_and_type(tmp_path: Path) -> None:
    rows = call(
        'benchmark', 'compare', '--arch', 'ti', '--size', 64, '--batch', 1, *FAST,
        '--modes', 'infer', 'train', '--dtypes', 'fp32', 'bf16', '--out', tmp_path,
        '--subjects', 'ours', 'ours windowed', 'floor', 'timm:deit_tiny_patch16_224',
    )  # fmt: skip
    assert len(rows) == 2 * 2 * 4
    assert [row['times'] for row in rows if row['name'] == 'ours'] == [1.0] * 4
    for row in rows:
        assert len(row['seconds']) == 2
        assert row['per_second'] == pytest.approx(1 / row['median'])
    written = json.loads((tmp_path / 'compare.json').read_text())
    assert written['rows'] == rows
    assert written['machine']['threads'] >= 1
    assert (tmp_path / 'compare.png').is_file()


def test_growth_and_parts_are_written(tmp_path: Path) -> None:
    sizes = ('--sizes', 32, 64)
    rows = call('benchmark', 'growth', '--arch', 'ti', *sizes, *FAST, '--out', tmp_path)
    assert [row['side'] for row in rows] == [32, 32, 64, 64]
    assert (tmp_path / 'growth.png').is_file()
    pytest.importorskip('mmseg')
    rows = call('benchmark', 'model', DEMO, '--size', 64, *FAST, '--out', tmp_path)
    assert [row['name'] for row in rows] == ['backbone', 'neck', 'decode_head', 'rest', 'total']
    assert sum(row['median'] for row in rows[:-1]) == pytest.approx(rows[-1]['median'], rel=0.5)


def test_operators_are_told_apart(tmp_path: Path) -> None:
    """A ViT has attention, products, GELU; the floor has no GELU and no norm."""
    rows = call(
        'benchmark', 'operators', '--arch', 'ti', '--size', 64, *FAST, '--out', tmp_path,
        '--subjects', 'ours', 'floor',
    )  # fmt: skip
    ours, floor = (row['seconds'] for row in rows)
    kinds = {'attention', 'products and convolutions', 'GELU', 'copies', 'norms'}
    assert kinds <= {kind for kind, seconds in ours.items() if seconds > 0}
    assert {'attention', 'products and convolutions'} <= set(floor)
    assert not {'GELU', 'norms'} & set(floor)
    written = json.loads((tmp_path / 'operators.json').read_text())
    assert written['rows'] == rows


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (('--subjects', 'nonsense'), "'nonsense' is no subject"),
        (('--subjects', 'timm:nonsense'), 'timm:nonsense'),
        (('--reference', '/nowhere'), 'no models_vit5.py'),
        (('--rounds', 0), '--rounds 0 must be 1 or more'),
    ],
)
def test_mistakes_are_told_in_a_line(
    options: tuple, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    argv = ('compare', '--arch', 'ti', '--size', 32, '--out', tmp_path)
    assert exit_code('benchmark', *argv, *options) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith('error: ')
    assert message in error
