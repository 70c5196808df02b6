"""The recipes of this package as bases of anybody's config: ``vit5_dense::NAME.py``."""

from pathlib import Path

from mmengine.config import Config
from mmengine.hub import hub

from . import health
from .errors import UserError

SCHEME = 'vit5_dense::'
FOLDER = Path(__file__).parent / '.mim' / 'configs' / 'vit5'


def config_path(name: str) -> str:
    """Path of a recipe that the package carries.

    Args:
        name: File name, such as 'upernet_vit5_s_ade20k.py'.

    Raises:
        UserError: If there is no such recipe; with the names there are.
    """
    path = FOLDER / name.removeprefix(SCHEME).removeprefix(f'{FOLDER.name}/')
    if not path.is_file():
        names = ', '.join(sorted(p.name for p in FOLDER.glob('*.py')))
        raise UserError(f'vit5_dense has no config {name}: choose one of {names}')
    return str(path)


def register_scheme() -> None:
    """Teach mmengine the scheme, in ``_base_`` and in ``mmengine.hub.get_config``.

    mmengine resolves ``package::path`` for a fixed list of OpenMMLab's packages only, and sets
    their registry scope, which an extension at the root registries does not have.
    """
    of_base, of_hub = Config._get_cfg_path, hub._get_package_and_cfg_path

    def base_path(cfg_path: str, filename: str) -> tuple[str, str | None]:
        if cfg_path.startswith(SCHEME):
            return config_path(cfg_path), None
        return of_base(cfg_path, filename)

    def package_and_path(cfg_path: str) -> tuple[str, str]:
        if cfg_path.startswith(SCHEME):
            # Of a module mmengine takes the folder it lies in; of the distribution of an editable
            # install it would take site-packages.
            return (
                health.__name__,
                f'{FOLDER.name}/{Path(config_path(cfg_path)).relative_to(FOLDER)}',
            )
        return of_hub(cfg_path)

    Config._get_cfg_path = staticmethod(base_path)
    hub._get_package_and_cfg_path = package_and_path
