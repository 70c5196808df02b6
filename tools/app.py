"""A local web page: drop a picture, see what the model finds and what its backbone looks at.

Examples:
    python tools/app.py configs/upernet_vit5_ti_shapes.py work_dirs/demo/last_checkpoint
    python tools/app.py model.onnx --port 8000
"""

import argparse
import ipaddress
import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from vit5_dense.app import require_gradio
from vit5_dense.backbones import ViT5
from vit5_dense.checkpoint_io import resolve_checkpoint
from vit5_dense.config import check_device, load_config, tool_parser
from vit5_dense.errors import UserError, run_tool
from vit5_dense.inference import Detector, load_predictor

if TYPE_CHECKING:
    from gradio import Blocks

PORTS = range(7860, 7960)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of this tool."""
    parser = tool_parser(__doc__)
    parser.add_argument(
        'checkpoint', nargs='?', help='trained model; none if the first argument is a MODEL.onnx'
    )
    parser.add_argument('--device', help='(cuda if there is one, else cpu)')
    parser.add_argument('--host', default='127.0.0.1', help='address to bind to (%(default)s)')
    parser.add_argument('--port', type=int, help='(the first that is free, from 7860 on)')
    return parser.parse_args(argv)


def free_port(host: str, port: int | None) -> int:
    """A port that can be bound to now.

    Args:
        host: Address or name of this machine.
        port: None for the first of ``PORTS`` that is free.

    Raises:
        UserError: If the port is taken or the address is not of this machine.
    """
    reason: Exception | None = None
    for number in PORTS if port is None else [port]:
        try:
            family = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0][0]
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, number))
                return probe.getsockname()[1]
        except (OSError, OverflowError, UnicodeError) as error:
            reason = error
    where = f'--host {host}' if port is None else f'--host {host} --port {port}'
    raise UserError(f'{where} cannot be bound to: {reason}. Choose another')


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == 'localhost'


def trained_page(args: argparse.Namespace) -> 'Blocks':
    """The page for a config and its checkpoint."""
    from vit5_dense.app.inside import View, make_view
    from vit5_dense.app.page import build_page
    from vit5_dense.maps import look_inside, model_view

    cfg = load_config(args.config, args.cfg_options)
    device = check_device(args.device or ('cuda' if torch.cuda.is_available() else 'cpu'))
    predictor = load_predictor(cfg, resolve_checkpoint(args.checkpoint), device)
    backbone = getattr(predictor.model, 'backbone', None)

    def view(picture: np.ndarray) -> View:
        tensor, seen_picture = model_view(predictor, picture)
        return make_view(look_inside(backbone, tensor), picture, seen_picture)

    return build_page(
        predictor,
        isinstance(predictor, Detector),
        Path(args.config).stem,
        device,
        view if isinstance(backbone, ViT5) else None,
    )


def onnx_page(args: argparse.Namespace) -> 'Blocks':
    """The page for an exported model."""
    from vit5_dense.app.page import build_page
    from vit5_dense.runtime import OnnxModel

    if args.checkpoint or args.cfg_options or args.device:
        raise UserError(f'{args.config} holds all of the model: leave out CHECKPOINT and options')
    model = OnnxModel(args.config)
    return build_page(model, model.task == 'detection', Path(args.config).name)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve the page until the program is interrupted."""
    args = parse_args(argv)
    onnx = args.config.lower().endswith('.onnx')
    if not onnx and not args.checkpoint:
        raise UserError(f'{args.config}: name a CHECKPOINT after it, or a MODEL.onnx alone')
    require_gradio()
    from vit5_dense.app.page import serve

    port = free_port(args.host, args.port)
    with tempfile.TemporaryDirectory(prefix='vit5_dense_app_') as folder:
        os.environ['GRADIO_TEMP_DIR'] = folder  # for uploads; read when the page is built
        page = onnx_page(args) if onnx else trained_page(args)
        if not is_loopback(args.host):
            print(f'note: anyone who reaches port {port} of {args.host} can use the model')
        print(f'open {serve(page, args.host, port)} in a browser; Ctrl-C ends the page', flush=True)
        page.block_thread()


if __name__ == '__main__':
    raise SystemExit(run_tool(main))
