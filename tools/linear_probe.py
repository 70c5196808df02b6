"""Train a linear classifier on frozen ViT-5 features of a folder of classes, and report top-1.

The folder is laid out as for ImageNet: FOLDER/train/CLASS/*.jpg and FOLDER/val/CLASS/*.jpg.

Examples:
    python tools/linear_probe.py vit5_small_patch16_224 data/flowers --pretrained
    python tools/linear_probe.py configs/upernet_vit5_s_ade20k.py data/flowers --checkpoint vit5.pth
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import timm
import torch
from rich.progress import track
from timm.data import create_transform, resolve_data_config
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from vit5_dense.building import building
from vit5_dense.config import check_device, load_config
from vit5_dense.errors import UserError, run_tool
from vit5_dense.timm_models import NAMES, ViT5Classifier

SIZES = ('arch', 'pretrain_img_size', 'patch_size', 'num_registers')  # that weights depend on


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('model', help=f'a config, or one of {", ".join(NAMES)}')
    parser.add_argument('folder', help='holds train/CLASS and val/CLASS')
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument('--checkpoint', metavar='FILE', help='any ViT-5 file')
    weights.add_argument('--pretrained', action='store_true', help='download the official weights')
    parser.add_argument('--pool', choices=('token', 'avg'), default='token', help='CLS or patches')
    parser.add_argument('--batch-size', type=int, default=32)
    parser.add_argument('--workers', type=int, default=2)
    parser.add_argument('--decay', type=float, default=1e-4, help='L2 penalty on the classifier')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    return parser.parse_args(argv)


def build_model(args: argparse.Namespace) -> ViT5Classifier:
    """The frozen model, without a classifier."""
    if args.model in NAMES:
        model = timm.create_model(
            args.model, pretrained=args.pretrained, num_classes=0, global_pool=args.pool
        )
    else:
        cfg = load_config(args.model)
        with building(cfg):
            backbone = cfg.model.backbone
            if 'ViT5' not in str(backbone.type):
                raise UserError(f'config {args.model} has the backbone {backbone.type}, not ViT5')
            if backbone.get('in_channels', 3) != 3:
                raise UserError(
                    f'config {args.model} has in_channels={backbone.in_channels}, and pictures of '
                    'a folder of classes have 3'
                )
            sizes = {key: backbone[key] for key in SIZES if key in backbone}
            model = ViT5Classifier(**sizes, num_classes=0, global_pool=args.pool)
        args.checkpoint = args.checkpoint or (backbone.get('init_cfg') or {}).get('checkpoint')
    if args.checkpoint:
        model.load_pretrained(args.checkpoint)
    elif not args.pretrained:
        print('note: random weights, since neither --checkpoint nor --pretrained is given')
    return model.to(args.device).eval()


def open_split(folder: Path, model: nn.Module) -> ImageFolder:
    """One split of the data, with the model's own preprocessing.

    Raises:
        UserError: If there are no classes with pictures.
    """
    config = resolve_data_config({}, model=model, use_test_size=False)
    try:
        return ImageFolder(folder, create_transform(**config))
    except (FileNotFoundError, OSError) as error:
        raise UserError(f'{folder}: {error}. Lay it out as CLASS/*.jpg') from error


@torch.no_grad()
def extract(
    model: ViT5Classifier, data: ImageFolder, args: argparse.Namespace
) -> tuple[Tensor, Tensor]:
    """Features (N, C), fp32 on the CPU, and labels (N,) of all pictures."""
    loader = DataLoader(data, args.batch_size, num_workers=args.workers)
    features, labels = [], []
    try:
        for pictures, targets in track(loader, description=f'features of {Path(data.root).name}'):
            features.append(model(pictures.to(args.device)).float().cpu())
            labels.append(targets)
    except OSError as error:  # of PIL; from a worker with its traceback
        raise UserError(f'{data.root} cannot be read: {str(error).splitlines()[-1]}') from error
    return torch.cat(features), torch.cat(labels)


def fit(features: Tensor, labels: Tensor, num_classes: int, decay: float) -> nn.Linear:
    """Logistic regression by L-BFGS, which finds the optimum of this convex problem."""
    classifier = nn.Linear(features.shape[1], num_classes)
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    optimizer = torch.optim.LBFGS(
        classifier.parameters(), max_iter=200, line_search_fn='strong_wolfe'
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(classifier(features), labels)
        loss = loss + decay * classifier.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return classifier


def main(argv: Sequence[str] | None = None) -> float:
    """Extract, fit and evaluate.

    Returns:
        Top-1 accuracy on val, per cent.
    """
    args = parse_args(argv)
    if args.batch_size < 1 or args.workers < 0 or not 0 <= args.decay < float('inf'):
        raise UserError('--batch-size must be 1 or more, --workers and --decay 0 or more')
    check_device(args.device)
    model = build_model(args)
    train, val = (open_split(Path(args.folder, split), model) for split in ('train', 'val'))
    if train.classes != val.classes:
        raise UserError(f'train has the classes {train.classes}, val has {val.classes}')
    features, labels = extract(model, train, args)
    mean, std = features.mean(0), features.std(0, correction=0).clamp(min=1e-6)
    classifier = fit((features - mean) / std, labels, len(train.classes), args.decay)
    features, labels = extract(model, val, args)
    with torch.inference_mode():
        hits = classifier((features - mean) / std).argmax(1) == labels
    accuracy = 100 * hits.float().mean().item()
    print(f'top-1: {accuracy:.2f} % of {len(labels)} pictures, {len(train.classes)} classes')
    return accuracy


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
