"""Train a segmentor or a detector from a config.

Examples:
    python tools/train.py configs/upernet_vit5_b_ade20k.py --amp
    python tools/train.py configs/mask_rcnn_vit5_s_coco.py --work-dir work_dirs/coco --resume
"""

import argparse
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from mmengine.config import Config

from vit5_dense.accumulation import accumulate, check_intervals
from vit5_dense.building import build_runner, check_data, require_framework
from vit5_dense.checkpoint_io import (
    checkpoints,
    is_safetensors,
    last_good_checkpoint,
    local_file,
    read_file,
    resolve_checkpoint,
)
from vit5_dense.config import (
    LAUNCHERS,
    fit_machine,
    is_first_process,
    join_processes,
    load_config,
    reading,
    tool_parser,
)
from vit5_dense.datasets.check import quick_check
from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.hooks.interrupt import Saved, train_until_interrupted
from vit5_dense.lock import sole_user
from vit5_dense.report import example_pictures, write_report

TITLE_SCORES = (  # name, label, decimals
    ('mIoU', 'mIoU', 2),
    ('coco/bbox_mAP_50', 'box AP50', 3),
    ('coco/segm_mAP_50', 'mask AP50', 3),
)


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
        '--accumulate',
        type=int,
        default=1,
        metavar='N',
        help='add up the gradients of N iterations for each step of the optimiser. A step then '
        'sees N x batch_size x processes pictures: choose one of the two N times smaller. '
        'Steps, pictures seen and the rate in each step stay as the config has them: iterations of '
        'the loop, checkpoints and logging become N times as many, schedules advance once a step. '
        'Resume with the same N',
    )
    parser.add_argument(
        '--no-pretrained', action='store_true', help='start from random weights: no download'
    )
    parser.add_argument(
        '--no-check', action='store_true', help='start without a look at the files of the data'
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
    accumulate(cfg, args.accumulate)
    check_intervals(cfg)
    if args.no_pretrained:
        cfg.model.backbone.init_cfg = None
    last = Path(cfg.work_dir, 'last_checkpoint')
    if cfg.get('resume') and not cfg.get('load_from') and last.is_file():
        args.resume = args.resume or 'latest'  # as mmengine does by itself, but unchecked
    if args.resume:
        cfg.resume = True
        cfg.load_from = str(
            last_good_checkpoint(last.parent)
            if args.resume == 'latest'
            else resolve_checkpoint(args.resume)
        )
    return cfg


def check_start(cfg: Config) -> None:
    """Read what the run starts from before mmengine does, which runs the code in what it loads.

    Raises:
        UserError: If it is broken or unsafe, or lacks what a run goes on from.
    """
    path = local_file(str(cfg.load_from))
    content = read_file(path)
    if is_safetensors(path):  # which may hold a pickle for torch at the same time
        raise UserError(f'{path} is a safetensors file, which mmengine cannot start from')
    if cfg.get('resume') and not {'meta', 'message_hub'} <= content.keys():
        raise UserError(f'{path} holds weights only: start from it by load_from, without --resume')
    cfg.load_from = str(path)
    if cfg.get('resume') and content['meta'].get('seed') is not None:
        cfg.merge_from_dict({'randomness.seed': content['meta']['seed']})  # the order of samples


def check_files(cfg: Config, path: str) -> None:
    """Look at the files of the data for a few seconds.

    Args:
        cfg: The config.
        path: Where it was read from.

    Raises:
        UserError: With the first faults that training would go wrong on.
    """
    report = quick_check(cfg, ('train', 'val'))
    for line in report.lines('warning'):
        print(f'warning: {line}')
    if errors := report.lines('error'):
        raise UserError(
            f'{" | ".join(errors[:3])}. See all with: python tools/check_data.py {path}; '
            'start in spite of it with --no-check'
        )


def told(stop: KeyboardInterrupt, work_dir: Path) -> str:
    """What an interrupted run has saved, and how it goes on."""
    if isinstance(stop, Saved):
        return f'stopped, saved as {stop}; go on with the same command and --resume'
    files = [path for path in checkpoints(work_dir) if os.path.isfile(path)]
    if not files:
        return 'stopped; nothing was saved, so that there is nothing to go on from'
    return (
        f'stopped; nothing newer was saved. The same command with --resume goes on from {files[0]}'
    )


def train(cfg: Config) -> dict[str, float]:
    """Run a checked config to its end; see ``main``."""
    runner = build_runner(cfg, train=True)
    try:
        train_until_interrupted(runner)
    except KeyboardInterrupt as stop:
        if runner.rank == 0:
            print(told(stop, Path(runner.work_dir)))
        raise
    if runner.rank != 0:
        return {}
    scores = {
        name: runner.message_hub.get_scalar(key).current()
        for key in runner.message_hub.log_scalars
        if (name := key.removeprefix('val/')) != key and 'time' not in name
    }
    title = f'{Path(cfg.filename).stem}, {runner.iter} iterations'
    for name, label, digits in TITLE_SCORES:
        if name in scores:
            title += f', {label} {scores[name]:.{digits}f}'
    report = write_report(Path(runner.work_dir), title, example_pictures(runner))
    print(f'report: {report}')
    return scores


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
        check_start(cfg)
    first = is_first_process(args.launcher)
    if first and not args.no_check:
        check_files(cfg, args.config)
    folder = make_folder(cfg.work_dir)
    join_processes(args.launcher)
    with sole_user(folder) if first else nullcontext():
        return train(cfg)


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
