"""The table of mistakes: tool, arguments, exit code and what the message says."""

from collections.abc import Iterator
from typing import NamedTuple

from bad_files import ANNOTATIONS, CHECKPOINTS, CONFIGS, LONG, MASKS, PICTURES


class Row(NamedTuple):
    """One mistake.

    Attributes:
        tool: Name of the tool.
        argv: Its arguments; names in braces are those of ``place``.
        words: Pieces of the message, which name the file or value, and the remedy.
        code: Exit code.
        lines: Number of messages.
    """

    tool: str
    argv: str
    words: tuple[str, ...]
    code: int = 2
    lines: int = 1


#: Checkpoints that are tried with all tools.
FORMS = ('cut.pth', 'states.pth', 'numbers.pth')
#: Arguments of every tool that takes a config, and of those that take a checkpoint.
WITH_CONFIG = {
    'train': '{} --work-dir {out}',
    'test': '{} {checkpoint} --work-dir {out}',
    'infer': '{} {checkpoint} {picture} --out {out}',
    'analyze_model': '{} --size 32 32',
    'benchmark': 'model {} --size 32 --out {out}',
    'linear_probe': '{} {bad}/classes',
    'check_data': '{} --out {out}',
}
WITH_CHECKPOINT = {
    'train': '{config} --work-dir {out} --no-check --cfg-options load_from={}',
    'train --resume': '{config} --work-dir {out} --no-check --resume {}',
    'test': '{config} {} --work-dir {out}',
    'infer': '{config} {} {picture} --out {out}',
    'convert_checkpoint': '{} {out}/new.pth',
    'publish_checkpoint': '{} {out}/new.pth',
    'linear_probe': '{config} {bad}/classes --checkpoint {}',
}
TRAIN = '{config} --work-dir {out} '
TEST = '{config} {checkpoint} --work-dir {out} '
INFER = '{config} {checkpoint} {picture} --out {out} '
CONVERT = '{checkpoint} {out}/new.pth '
SHAPES = '--out {out} --train 2 --val 1 --workers 1 '
DETECT = '{det} --work-dir {out} --cfg-options train_dataloader.dataset.'
COMPARE = 'compare --arch ti --size 32 --rounds 1 --warmup 0 --subjects ours --out {out} '
MASKS_TOOL = '{bad}/masks --out {out} --colors {bad}/'
#: What run_tool does not turn into a message: any file that cannot be written or named.

OPTIONS = [
    ('train', TRAIN + '--cfg-options modl.backbone.arch=s', 'modl', 'did you mean model?'),
    ('train', TRAIN + '--cfg-options max_iterations=3', 'max_iterations', 'set a key'),
    ('train', TRAIN + '--cfg-options model.backbone.archh=s', 'archh'),
    ('train', TRAIN + '--cfg-options model.backbone.type=ViT55', 'ViT55'),
    ('train', TRAIN + '--cfg-options model.backbone.pretrain_img_size=63', '63', 'patch_size'),
    ('train', TRAIN + '--cfg-options model.data_preprocessor.size=many', 'many'),
    ('train', TRAIN + '--cfg-options model=3', 'model=3', 'model.NAME'),
    ('train', TRAIN + '--cfg-options train_cfg=3', 'train_cfg=3', 'train_cfg.NAME'),
    ('train', TRAIN + '--cfg-options train_cfg.max_iters=many', 'many'),
    ('train', TRAIN + '--cfg-options train_cfg.val_interval=0', 'val_interval'),
    ('train', TRAIN + '--cfg-options train_dataloader.batch_size=0', 'batch_size'),
    ('train', TRAIN + '--cfg-options train_dataloader.num_workers=some', 'config'),
    ('train', TRAIN + '--cfg-options optim_wrapper.optimizer.lr=fast', 'cannot be built'),
    ('train', TRAIN + '--cfg-options randomness.seed=luck', 'cannot be built'),
    ('train', TRAIN + '--cfg-options log_level=LOUD', 'LOUD'),
    ('train', TRAIN + '--cfg-options train_dataloader.dataset.data_root=/nowhere', '/nowhere'),
    ('train', TRAIN + '--cfg-options noequals', 'noequals', 'KEY=VALUE'),
    ('train', TRAIN + '--cfg-options', '--cfg-options'),
    ('train', TRAIN + '--launcher mpi', 'mpi', 'pytorch'),
    ('train', TRAIN + '--launcher pytorch', 'torchrun'),
    ('train', TRAIN + '--resume', 'nothing to go on from', '{out}'),
    ('train', TRAIN + '--accumulate 0', '--accumulate 0'),
    ('train', TRAIN + '--fast', '--fast'),
    ('train', '', 'config'),
    ('train', '{config} --work-dir {bad}/page.pth', 'page.pth'),
    ('train', '{config} --work-dir /proc/nowhere', '/proc/nowhere'),
    ('train', '{config} --work-dir {out}/{long}', '{long}'),
    ('test', TEST + '--out {bad}', '{bad}', 'JSON file'),
    ('test', TEST + '--out {bad}/page.pth/scores.json', 'page.pth'),
    ('test', TEST + '--out /proc/nowhere/scores.json', '/proc/nowhere'),
    ('test', TEST + '--format-only', '--out'),
    ('test', TEST + '--format-only --out {bad}/page.pth', 'page.pth'),
    ('test', TEST + '--launcher pytorch', 'torchrun'),
    ('test', '{det} {checkpoint} --work-dir {out}', 'is not of the model'),
    ('test', '{config} {checkpoint} --work-dir {bad}/page.pth', 'page.pth'),
    ('infer', INFER + '--device cuda:99', 'cuda:99'),
    ('infer', INFER + '--device gpu', 'gpu'),
    ('infer', INFER + '--device cpu:x', 'cpu:x'),
    ('infer', INFER + '--batch 0', '--batch 0', '1 or more'),
    ('infer', INFER + '--batch 1.5', '1.5'),
    ('infer', INFER + '--opacity 2', '--opacity 2', 'between 0 and 1'),
    ('infer', INFER + '--opacity nan', '--opacity nan'),
    ('infer', INFER + '--score-thr -1', '--score-thr -1'),
    ('infer', INFER + '--tile 0', '--tile 0'),
    ('infer', INFER + '--tile 64 --overlap 64', '--overlap 64'),
    ('infer', INFER + '--overlap 4', '--tile'),
    ('infer', '{config} {checkpoint} --out {out}', 'pictures'),
    ('infer', '{config} {checkpoint} {bad}/bare --out {out}', '{bad}/bare', '.png'),
    ('infer', '{config} {checkpoint} {bad}/no*.png --out {out}', 'no*.png', 'matches no'),
    ('infer', '{config} {checkpoint} {bad}/{long}.png --out {out}', '{long}'),
    ('infer', '{config} {checkpoint} {picture} --out {bad}/page.pth', 'page.pth'),
    ('infer', '{config} {checkpoint} {picture} --out /proc/nowhere', '/proc/nowhere'),
    ('infer', '{config} {checkpoint} {picture} --out {bad}/taken', 'taken'),
    ('infer', '{config} {checkpoint} {bad}/a {bad}/b --out {out}', 'nnnn'),
    ('infer', '{config} {checkpoint} {picture}', '--out'),
    ('infer', '{det} {checkpoint} {picture} --out {out}', 'is not of the model'),
    ('convert_checkpoint', CONVERT + '--to-img-size 0', '--to-img-size 0', 'multiple'),
    ('convert_checkpoint', CONVERT + '--to-img-size -1', '--to-img-size -1', 'multiple'),
    ('convert_checkpoint', CONVERT + '--to-img-size 100', '--to-img-size 100', 'multiple of'),
    ('convert_checkpoint', CONVERT + '--to-img-size 1000000000', '1000000000', 'memory'),
    ('convert_checkpoint', CONVERT + '--to-img-size big', 'big'),
    ('convert_checkpoint', CONVERT + '--dtype fp8', 'fp8', 'bf16'),
    ('convert_checkpoint', '{checkpoint} {out}/new.bin', 'new.bin', '.safetensors or .pth'),
    ('convert_checkpoint', '{checkpoint} {bad}/whole.pth', 'whole.pth', '--force'),
    ('convert_checkpoint', '{checkpoint} {bad}/page.pth/new.pth', 'page.pth'),
    ('convert_checkpoint', '{checkpoint} /proc/new.pth', '/proc/new.pth'),
    ('convert_checkpoint', '{checkpoint} {out}/{long}.pth', '{long}'),
    ('convert_checkpoint', '{bad}/resnet.pth {out}/new.pth', 'is no ViT-5'),
    ('publish_checkpoint', '{checkpoint} {out}/new.bin', 'must end in .pth'),
    ('publish_checkpoint', '{checkpoint} {out}/{long}.pth', '{long}'),
    ('publish_checkpoint', '{checkpoint} /proc/new.pth', '/proc'),
    ('publish_checkpoint', '{checkpoint} {bad}/page.pth/new.pth', 'page.pth'),
    ('publish_checkpoint', '{bad}/whole.pth {out}/new.pth', 'has no state_dict'),
    ('publish_checkpoint', '{bad}/no_state.pth {out}/new.pth', 'no_state.pth'),
    ('publish_checkpoint', '{bad}/text_meta.pth {out}/new.pth', 'text_meta.pth'),
    ('make_shapes', SHAPES + '--train 0', '--train is 0'),
    ('make_shapes', SHAPES + '--val few', 'few'),
    ('make_shapes', SHAPES + '--seed -1', '--seed is -1'),
    ('make_shapes', SHAPES + '--workers 0', '--workers is 0'),
    ('make_shapes', SHAPES + '--train 1000000000000', 'MB free', 'smaller counts'),
    ('make_shapes', '--train 2', '--out'),
    ('make_shapes', SHAPES + '--out {bad}/page.pth', 'page.pth', 'choose another'),
    ('make_shapes', SHAPES + '--out {bad}', '{bad}', 'choose another'),
    ('make_shapes', SHAPES + '--out {bad}/page.pth/set', 'page.pth', 'choose another'),
    ('make_shapes', SHAPES + '--out /proc/nowhere', '/proc has 0 MB', 'choose another'),
    ('make_shapes', SHAPES + '--out {out}/{long}', '{long}'),
    ('linear_probe', 'vit5_giant {bad}/classes', 'vit5_giant'),
    ('linear_probe', '{config} {bad}/bare', 'CLASS/*.jpg'),
    ('linear_probe', '{config} {bad}/nowhere', 'nowhere'),
    ('linear_probe', '{config} {bad}/{long}', '{long}'),
    ('linear_probe', '{config} {bad}/classes --pool max', 'max'),
    ('linear_probe', '{config} {bad}/classes --device gpu', 'gpu'),
    ('linear_probe', '{config} {bad}/classes --batch-size 0', '--batch-size'),
    ('linear_probe', '{config} {bad}/classes --checkpoint {bad}/resnet.pth', 'resnet.pth'),
    ('analyze_model', '{config} --size 0 32', '--size'),
    ('analyze_model', '{config} --size 32', '--size'),
    ('analyze_model', '{config} --size 9000000 9000000', '9000000', 'memory'),
    ('benchmark', 'race --out {out}', 'race', 'compare'),
    ('benchmark', COMPARE + '--size 0', '--size 0', '1 or more'),
    ('benchmark', COMPARE + '--size 9000000', 'memory'),
    ('benchmark', COMPARE + '--batch -1', '--batch -1'),
    ('benchmark', COMPARE + '--rounds 0', '--rounds 0'),
    ('benchmark', COMPARE + '--warmup -1', '--warmup -1'),
    ('benchmark', COMPARE + '--threads -1', '--threads -1'),
    ('benchmark', COMPARE + '--device gpu', 'gpu'),
    ('benchmark', COMPARE + '--arch giant', 'giant'),
    ('benchmark', COMPARE + '--subjects theirs', "'theirs' is no subject"),
    ('benchmark', COMPARE + '--reference {bad}/bare', '{bad}/bare'),
    ('benchmark', COMPARE + '--out {bad}/page.pth', 'page.pth'),
    ('benchmark', 'growth --sizes 32 0 --out {out}', '--sizes'),
    ('check_data', '{config} --out {out} --split final', 'final', 'train'),
    ('check_data', '{config} --out {bad}/page.pth', 'page.pth'),
    ('check_data', '{config} --out /proc/nowhere', '/proc/nowhere'),
    ('convert_masks', MASKS_TOOL + 'nowhere.json', 'nowhere.json'),
    ('convert_masks', MASKS_TOOL + 'no.json', 'no.json', 'JSON'),
    ('convert_masks', MASKS_TOOL + 'form.json', 'form.json', 'it must be'),
    ('convert_masks', MASKS_TOOL + 'colors.json', 'whole.png', 'give the colour a class'),
    ('convert_masks', MASKS_TOOL + 'colors.json --indices', 'leave out --indices'),
    ('convert_masks', MASKS_TOOL + 'colors.json --out {bad}/masks/new', 'choose another folder'),
    ('convert_masks', MASKS_TOOL + 'colors.json --out {bad}/page.pth', 'page.pth'),
    ('convert_masks', '{bad}/bare --out {out} --colors {bad}/colors.json', '{bad}/bare'),
]


def all_rows() -> Iterator[Row]:
    """Every row: those of ``OPTIONS`` and the products of tools and bad files."""
    for tool, argv, *words in OPTIONS:
        yield Row(tool, argv, tuple(words))
    configs = {name: (f'{{bad}}/{name}', words) for name, (_, words) in CONFIGS.items()}
    configs |= {'bad': ('{bad}', 'does not exist'), LONG: (f'{LONG}.py', 'does not exist')}
    configs |= {'nowhere': ('nowhere.py', 'nowhere.py'), 'vit5': ('vit5_dense::x', 'choose one')}
    for tool, argv in WITH_CONFIG.items():
        for name, (path, words) in configs.items():
            if tool == 'analyze_model' or name in ('fails.py', 'nowhere', LONG):
                yield Row(tool, argv.replace('{}', path, 1), (words,))
    for name, words in CHECKPOINTS.items():
        for tool, argv in WITH_CHECKPOINT.items():
            if tool in ('test', 'train --resume') and name not in FORMS:
                continue  # they read as infer and train do
            row = argv.replace('{}', f'{{bad}}/{name}', 1)
            yield Row(tool.split()[0], row, (name, *[words] * (name != 'folder.pth')))
    for name in PICTURES:
        argv = f'{{config}} {{checkpoint}} {{picture}} {{bad}}/{name} --out {{out}}'
        yield Row('infer', argv, (f'{name} cannot be read: ',), code=1)
    for kind, (_, words) in MASKS.items():
        root = f'{{bad}}/mask_{kind}'
        options = f'--cfg-options train_dataloader.dataset.data_root={root}'
        yield Row('train', f'{TRAIN} {options}', (root, words, '--no-check'))
        if kind in ('colours', 'cut'):
            argv = f'{{config}} --out {{out}} --split train {options}'
            yield Row('check_data', argv, (root, words))
    for kind, (_, words) in ANNOTATIONS.items():
        path = f'{{bad}}/{kind.replace(" ", "_")}.json'
        yield Row('train', f'{DETECT}ann_file={path}', (path, words))
        if kind in ('id 0', 'no mask'):
            yield Row('train', f'{DETECT}ann_file={path} --no-check', (path, words))
    yield from shared_rows()


def shared_rows() -> Iterator[Row]:
    """Rows over real files, beside the repository."""
    for name in ('truncated_image.png', 'truncated_jpeg.jpg', 'mmcv_uint16-5channel.tif'):
        argv = f'{{config}} {{checkpoint}} {{shared}}/nasty_images/{name} --out {{out}}'
        yield Row('infer', argv, (f'{name} cannot be read: ',), code=1)
    folders = {
        'empty_segmentation_dataset.json': 'coco_edge',
        'icevision6/annotations.json': 'coco_edge/icevision6/images',
        'labelbox/instances.json': 'coco_edge/labelbox/images',
        'labelbox/rle.json': 'coco_edge/labelbox/images',
        'ochuman_rle_str/test_ochuman.json': 'coco_edge/ochuman_rle_str',
    }
    for name, pictures in folders.items():
        data = f'ann_file={{shared}}/coco_edge/{name} train_dataloader.dataset.data_prefix.img='
        argv = f'{DETECT}{data}{{shared}}/{pictures} --no-check'
        yield Row('train', argv, (name, 'of 6 classes found', 'metainfo'))
        if name.startswith('empty'):
            only = 'train_dataloader.dataset.metainfo.classes=(car,bus)'
            argv = argv.replace(' --no-check', f' {only} --no-check')
            yield Row('train', argv, (name, 'no segmentation', 'with_mask=False'))
