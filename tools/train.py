"""Train a segmentor or a detector from a config.

Examples:
    python tools/train.py configs/upernet_vit5_b_ade20k.py --amp
    python tools/train.py configs/upernet_vit5_ti_shapes.py --work-dir work_dirs/demo --resume
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config

from vit5_dense.building import build_runner, check_data, require_framework
from vit5_dense.checkpoint_io import read_file, resolve_checkpoint
from vit5_dense.config import (
    LAUNCHERS,
    fit_machine,
    join_processes,
    load_config,
    reading,
    tool_parser,
)
from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.hooks.interrupt import train_until_interrupted
from vit5_dense.report import example_pictures, write_report


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = tool_parser(__doc__)
    parser.add_argument('--work-dir', help='default: work_dirs/<name of the config>')
    parser.add_argument('--amp', action='store_true', help='mixed precision (bf16)')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='latest',
        metavar='FILE',
        help='go on from FILE, or from the last checkpoint of the work dir',
    )
    parser.add_argument('--launcher', choices=LAUNCHERS, default='none')
    parser.add_argument(
        '--auto-scale-lr', action='store_true', help='scale the rate with the global batch size'
    )
    parser.add_argument(
        '--no-pretrained', action='store_true', help='start from random weights: no download'
    )
    parser.add_argument('--local_rank', '--local-rank', type=int, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def build_config(args: argparse.Namespace) -> Config:
    """The config with all options of the command line applied."""
    cfg = load_config(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    cfg.work_dir = args.work_dir or cfg.get('work_dir') or f'work_dirs/{Path(args.config).stem}'
    fit_machine(cfg, args.launcher)
    if args.amp:
        cfg.optim_wrapper.type = 'ViT5BF16OptimWrapper'
        for key in ('loss_scale', 'dtype'):  # of AmpOptimWrapper
            cfg.optim_wrapper.pop(key, None)
    if args.auto_scale_lr:
        cfg.merge_from_dict({'auto_scale_lr.enable': True})
    if args.no_pretrained:
        cfg.model.backbone.init_cfg = None
    if args.resume:
        last = Path(cfg.work_dir, 'last_checkpoint')
        if args.resume == 'latest' and not last.is_file():
            raise UserError(f'--resume: {last} does not exist, so there is nothing to go on from')
        cfg.resume = True
        cfg.load_from = str(
            resolve_checkpoint(str(last) if args.resume == 'latest' else args.resume)
        )
    return cfg


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, and write ``report.png`` in the work dir.

    Returns:
        The last validation scores.
    """
    args = parse_args(argv)
    with reading(args.config):
        cfg = build_config(args)
    require_framework(cfg)
    check_data(cfg, ('train', 'val'))
    if cfg.get('load_from'):
        read_file(Path(cfg.load_from))  # mmengine would run code in it; here that is an error
    make_folder(cfg.work_dir)
    join_processes(args.launcher)
    runner = build_runner(cfg, train=True)
    try:
        train_until_interrupted(runner)
    except KeyboardInterrupt:
        print(f'stopped, saved in {runner.work_dir}; go on with the same command and --resume')
        raise
    if runner.rank != 0:
        return {}
    scores = {
        name: runner.message_hub.get_scalar(key).current()
        for key in runner.message_hub.log_scalars
        if (name := key.removeprefix('val/')) != key and 'time' not in name
    }
    title = f'{Path(args.config).stem}, {runner.iter} iterations'
    if 'mIoU' in scores:
        title += f', mIoU {scores["mIoU"]:.2f}'
    pictures = example_pictures(runner) if cfg.get('default_scope') == 'mmseg' else []
    report = write_report(Path(runner.work_dir), title, pictures)
    print(f'report: {report}')
    return scores


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
