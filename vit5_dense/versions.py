"""Which distribution brings each OpenMMLab package, and the versions that were tested.

Standard library only, no import of this package: setup.py loads the file by its path.
"""

import importlib.metadata
import re
import sys
from collections.abc import Iterable
from pathlib import Path

# The maintained fork and upstream own the same import names: a second one overwrites the first.
FORK = {
    'mmengine': 'onedl-mmengine',
    'mmcv': 'onedl-mmcv',
    'mmseg': 'onedl-mmsegmentation',
    'mmdet': 'onedl-mmdetection',
}
UPSTREAM = {
    'mmengine': ('mmengine',),
    'mmcv': ('mmcv', 'mmcv-lite', 'mmcv-full'),
    'mmseg': ('mmsegmentation',),
    'mmdet': ('mmdet',),
}
PIP = 'python -m pip'


def installed_distributions(path: Iterable[str] | None = None) -> dict[str, str]:
    """Versions of the installed distributions by normalised name, of `sys.path` or of `path`."""
    search = sys.path if path is None else list(path)
    found: dict[str, str] = {}
    for dist in importlib.metadata.distributions(path=search):
        if not (dist.read_text('METADATA') or dist.read_text('PKG-INFO')):
            continue  # a folder that an interrupted uninstall left behind
        name = re.sub(r'[-_.]+', '-', dist.metadata['Name']).lower()
        found.setdefault(name, dist.metadata['Version'])
    return found


def owners(module: str, dists: dict[str, str]) -> list[str]:
    """Distributions among `dists` that write the folder `module`; two of them are a conflict."""
    names = (FORK[module], *UPSTREAM[module]) if module in FORK else (module,)
    return [name for name in names if name in dists]


def is_upstream(dists: dict[str, str]) -> bool:
    """Whether the environment follows upstream OpenMMLab; the fork is the default."""
    fork = any(name in dists for name in FORK.values())
    return not fork and any(name in dists for names in UPSTREAM.values() for name in names)


def tested_versions(upstream: bool) -> dict[str, str]:
    """The pins of constraints.txt, or of constraints-upstream.txt, by normalised name."""
    name = 'constraints-upstream.txt' if upstream else 'constraints.txt'
    text = (Path(__file__).parent / '.mim' / name).read_text(encoding='utf-8')
    pins = re.findall(r'^([\w.-]+)==([\w.]+)', text, flags=re.MULTILINE)
    return {re.sub(r'[-_.]+', '-', name).lower(): version for name, version in pins}


def distribution_of(module: str, upstream: bool) -> str:
    """The distribution that brings `module` on the fork's or on upstream's line."""
    if module not in FORK:
        return module
    return UPSTREAM[module][0] if upstream else FORK[module]


def install_line(modules: Iterable[str], upstream: bool) -> str:
    """The pip line that installs the tested version of each module or distribution."""
    tested = tested_versions(upstream)
    names = [distribution_of(module, upstream) for module in modules]
    pinned = [f'{name}=={tested[name]}' if name in tested else name for name in names]
    return f'{PIP} install {" ".join(pinned)}'


def compiled_ops_line(dists: dict[str, str]) -> str:
    """The line that builds mmcv with compiled ops against the torch that is installed.

    Without build isolation, because mmcv's build leaves the ops out where it does not find torch;
    past pip's wheel cache, which does not tell if a wheel has ops and for which torch. With the
    tested torch where a newer one is installed: mmcv compiles as C++17, later torch needs C++20.
    """
    upstream = is_upstream(dists)
    mmcv = distribution_of('mmcv', upstream)
    tools = ['setuptools', 'wheel', 'ninja', 'packaging']
    if _minor(dists.get('torch', '')) > _minor(tested_versions(upstream)['torch']):
        tools = ['torch', 'torchvision', *tools]
    drop = f'{PIP} uninstall -y mmcv-lite && ' if 'mmcv-lite' in dists else ''
    flags = f'--no-build-isolation --no-deps --no-cache-dir --force-reinstall --no-binary {mmcv}'
    version = dists.get(mmcv) or tested_versions(upstream)[mmcv]
    build = f'MMCV_WITH_OPS=1 {PIP} install {flags} {mmcv}=={version}'
    return f'{drop}{install_line(tools, upstream)} && {build}'


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r'\d+', version)[:2])
