"""Evaluate a segmentor or a detector, or write its predictions for pictures without labels.

Examples:
    python tools/test.py configs/upernet_vit5_b_ade20k.py work_dirs/run/iter_160000.pth --tta
    python tools/test.py CONFIG CHECKPOINT --format-only --out predictions
    python tools/test.py CONFIG model.onnx --report errors
    python tools/test.py CONFIG CHECKPOINT --report errors
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from torch.utils.data import Dataset

from vit5_dense.building import build_runner, check_data, data_sets, require_framework
from vit5_dense.checkpoint import load_trained
from vit5_dense.checkpoint_io import resolve_checkpoint
from vit5_dense.config import (
    LAUNCHERS,
    fit_machine,
    join_processes,
    load_config,
    reading,
    tool_parser,
    without_labels,
)
from vit5_dense.error_report.collect import WORST, picture_number
from vit5_dense.error_report.files import write_report
from vit5_dense.error_report.watch import watch_errors
from vit5_dense.errors import UserError, make_folder, run_tool
from vit5_dense.exported import load_exported


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = tool_parser(__doc__)
    parser.add_argument(
        'checkpoint', help='trained model, a last_checkpoint file naming one, or an exported .onnx'
    )
    parser.add_argument('--tta', action='store_true', help='multi-scale and flip testing')
    parser.add_argument('--show-dir', metavar='DIR', help='write pictures of all predictions')
    parser.add_argument(
        '--report',
        metavar='DIR',
        help='write report.html with the worst pictures, all classes and the confusion matrix',
    )
    parser.add_argument(
        '--report-pictures',
        type=picture_number,
        default=WORST,
        metavar='N|all',
        help=f'how many pictures --report shows, the worst first (default: {WORST})',
    )
    parser.add_argument(
        '--format-only', action='store_true', help='write predictions to --out; needs no labels'
    )
    parser.add_argument(
        '--out',
        metavar='PATH',
        help='JSON of all scores (default: scores.json in the work dir); with --format-only the '
        'folder for label PNGs or for predictions.bbox.json and predictions.segm.json',
    )
    parser.add_argument('--work-dir', help='default: the folder of the checkpoint')
    parser.add_argument('--launcher', choices=LAUNCHERS, default='none')
    parser.add_argument('--local_rank', '--local-rank', type=int, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def build_config(args: argparse.Namespace) -> Config:
    """The config with all options of the command line applied."""
    cfg = load_config(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    cfg.work_dir = args.work_dir or str(Path(args.checkpoint).parent)
    cfg.model.backbone.init_cfg = None
    cfg.load_from, cfg.resume = None, False
    fit_machine(cfg, args.launcher)
    if args.tta:
        if not (cfg.get('tta_model') and cfg.get('tta_pipeline')):
            raise UserError(f'--tta: {args.config} has no tta_model and tta_pipeline')
        for dataset in data_sets(cfg.test_dataloader.dataset):
            if 'pipeline' in dataset:
                dataset.pipeline = cfg.tta_pipeline
        cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)
    if args.show_dir:
        hook = cfg.default_hooks.get('visualization')
        if hook is None:
            raise UserError(f'--show-dir: {args.config} has no default_hooks.visualization')
        hook.update(draw=True, interval=1)
        cfg.merge_from_dict(
            {
                'visualizer.vis_backends': [{'type': 'LocalVisBackend'}],
                'visualizer.save_dir': args.show_dir,
            }
        )
    if args.format_only:
        if not args.out:
            raise UserError('--format-only needs --out, the folder for the predictions')
        is_detector = cfg.get('default_scope') == 'mmdet'
        option = 'outfile_prefix' if is_detector else 'output_dir'
        target = str(Path(args.out, 'predictions')) if is_detector else args.out
        for dataset in data_sets(cfg.test_dataloader.dataset):
            if 'pipeline' in dataset:
                dataset.pipeline = without_labels(dataset.pipeline)
                dataset.data_prefix.pop('seg_map_path', None)
    metrics = cfg.test_evaluator
    for metric in metrics if isinstance(metrics, list) else [metrics]:
        if metric.type == 'IoUMetric':
            metric.type = 'ClassIoUMetric'
        if args.format_only:
            metric.update({'format_only': True, option: target})
    return cfg


def check_names(dataset: Dataset) -> None:
    """Refuse pictures of one name in several folders, whose predictions would be one file.

    Raises:
        UserError: With two of them.
    """
    seen: dict[str, str] = {}
    for i in range(len(dataset)):
        path = dataset.get_data_info(i)['img_path']
        other = seen.setdefault(Path(path).stem, path)
        if other != path:
            raise UserError(f'{other} and {path} would both be written to {Path(path).stem}.png')


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Evaluate, and write scores as JSON.

    Returns:
        The scores; with ``--format-only`` nothing.
    """
    args = parse_args(argv)
    for option, value in (('--format-only', args.format_only), ('--launcher', args.launcher)):
        if args.report and value not in (False, 'none'):
            raise UserError(f'--report needs labels and one process: leave out {option}')
    checkpoint = resolve_checkpoint(args.checkpoint)
    exported = checkpoint if checkpoint.suffix == '.onnx' else None
    if exported and (args.tta or args.launcher != 'none'):
        raise UserError(f'{exported} is an exported file: leave out --tta and --launcher')
    with reading(args.config):
        cfg = build_config(args)
    name = f'{exported.stem}.scores.json' if exported else 'scores.json'
    out = Path(args.out or Path(make_folder(cfg.work_dir), name))
    if out.is_dir() and not args.format_only:
        raise UserError(f'--out {out} is a folder: name a JSON file')
    make_folder(out if args.format_only else out.parent)
    if args.report:
        make_folder(args.report)
    require_framework(cfg)
    check_data(cfg, ('test',))
    if cfg.get('default_scope') == 'mmseg':
        import vit5_dense.evaluation  # noqa: F401  registers ClassIoUMetric
    join_processes(args.launcher)
    runner = build_runner(cfg, train=False)
    if exported:
        runner.model = load_exported(exported, runner.test_dataloader.dataset)
    else:
        load_trained(runner.model, checkpoint)
    if args.format_only and cfg.get('default_scope') == 'mmseg':
        check_names(runner.test_dataloader.dataset)
    errors = watch_errors(runner, Path(args.report), args.report_pictures) if args.report else None
    scores: dict[str, Any] = {name: round(float(value), 4) for name, value in runner.test().items()}
    if runner.rank != 0:
        return {}
    if args.format_only:
        print(f'predictions: {args.out}')
        return {}
    table = [metric.table for metric in runner.test_evaluator.metrics if hasattr(metric, 'table')]
    finite = {name: None if math.isnan(value) else value for name, value in scores.items()}
    out.write_text(json.dumps({**finite, 'classes': table[0] if table else []}, indent=1) + '\n')
    print(f'scores: {out}')
    if errors:
        facts = {'config': args.config, 'checkpoint': str(checkpoint)}
        page = write_report(errors, Path(args.report), facts, scores, table[0] if table else [])
        print(f'report: {page}')
    if 'mIoU' in scores and 'classes_averaged' in scores:
        print(f'mIoU: {scores["mIoU"]:.2f} over {scores["classes_averaged"]:.0f} classes')
    for kind in ('bbox', 'segm'):
        if f'coco/{kind}_mAP' in scores:
            both = scores[f'coco/{kind}_mAP'], scores[f'coco/{kind}_mAP_50']
            print('{}: AP {:.3f}, AP50 {:.3f}'.format(kind, *both))
    if exported:
        rate = f'{1e3 * runner.model.seconds / runner.model.pictures:.1f} ms a picture'
        print(f'{exported}: {exported.stat().st_size / 2**20:.1f} MB, {rate}')
    return scores


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
