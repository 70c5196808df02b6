"""Health report: versions found against tested, compiled ops, devices, and what mends each problem.

Exit code 0 if the package is usable, 1 if there is a problem. Where onnxruntime is installed and
torch is not, usable means for exported models.

Examples:
    python -m vit5_dense
    python -m vit5_dense || echo 'see the lines after "problem:"'
"""

import importlib.util
import os
import platform
import sys
from pathlib import Path

from . import __version__
from .health import (
    CORE,
    MissingDependencyError,
    Problem,
    import_problem,
    missing_core,
    require_compiled_ops,
)
from .versions import (
    FORK,
    PIP,
    compiled_ops_line,
    distribution_of,
    install_line,
    installed_distributions,
    is_upstream,
    owners,
    tested_versions,
)

REPORTED = (
    *('torch', 'torchvision', 'timm', 'fvcore', 'numpy', 'onnxruntime'),
    *('mmengine', 'mmcv', 'mmseg', 'mmdet'),
)


def version_rows(dists: dict[str, str]) -> list[str]:
    """One line for each package: version found, version tested, distribution that it is from."""
    tested = tested_versions(is_upstream(dists))
    rows = [f'{"":<13}{"found":<24}{"tested":<24}from']
    for module in REPORTED:
        names = owners(module, dists)
        found = dists[names[0]] if names else '-'
        wanted = tested.get(distribution_of(module, is_upstream(dists)), '-')
        origin = ' and '.join(names) or '-'
        if not names and importlib.util.find_spec(module):
            origin = 'a folder on PYTHONPATH, no distribution'
        differs = names and wanted not in ('-', found.partition('+')[0])
        rows.append(f'{module:<13}{found:<24}{wanted:<24}{origin}{" (differs)" if differs else ""}')
    return rows


def conflicts(dists: dict[str, str]) -> list[Problem]:
    """A problem for each import name that two installed distributions write."""
    found = []
    for module, fork in FORK.items():
        names = owners(module, dists)
        if len(names) < 2:
            continue
        keep = fork if fork in names else names[0]
        found.append(
            Problem(
                f'{" and ".join(names)} both write the folder {module}',
                f'{PIP} uninstall -y {" ".join(names)} && '
                f'{PIP} install --no-cache-dir --no-deps {keep}=={dists[keep]}',
            )
        )
    return found


def core_problems(dists: dict[str, str]) -> list[Problem]:
    """Problems of what every user needs."""
    missing = missing_core()
    found = []
    if missing:
        mend = install_line(missing, is_upstream(dists))
        found.append(Problem(f'not installed: {", ".join(missing)}', mend))
    tried = (import_problem(module, dists) for module in CORE if module not in missing)
    found += [problem for problem in tried if problem]
    if not any(problem.what.startswith('torch ') for problem in found) and 'torch' not in missing:
        found += _numpy_problems()
    return found


def _numpy_problems() -> list[Problem]:
    import torch

    try:
        torch.zeros(1).numpy()
    except RuntimeError as error:
        what = f'torch {torch.__version__} does not work with this numpy: {error}'
        return [Problem(what, f"{PIP} install 'numpy<2'")]
    return []


def framework_problems(dists: dict[str, str]) -> tuple[list[Problem], list[Problem], bool]:
    """Problems of mmcv, mmseg and mmdet; what is merely not installed; whether the ops work."""
    upstream = is_upstream(dists)
    problems, absent = [], []
    if importlib.util.find_spec('mmcv') is None:
        what = 'mmcv is not installed (segmentation and detection need it)'
        return [], [Problem(what, install_line(['mmcv'], upstream))], False
    mmcv = import_problem('mmcv', dists)
    if mmcv:
        return [mmcv], [], False
    try:
        require_compiled_ops()
        no_ops = None
    except MissingDependencyError as error:
        what = f'no compiled ops (detection needs them): {error.__cause__ or error}'
        no_ops = Problem(what, compiled_ops_line(dists))
    for module, task in (('mmseg', 'segmentation'), ('mmdet', 'detection')):
        if importlib.util.find_spec(module) is None:
            what = f'{module} is not installed (only {task} needs it)'
            names = [module, 'ftfy', 'regex'] if module == 'mmseg' else [module]
            absent.append(Problem(what, install_line(names, upstream)))
        elif module == 'mmdet' and no_ops:
            problems.append(no_ops)
        else:
            problem = import_problem(f'{module}.apis', dists)
            problems += [problem] if problem else []
    if no_ops and no_ops not in problems:
        absent.append(no_ops)
    return problems, absent, no_ops is None


def runtime_problem(dists: dict[str, str]) -> Problem | None:
    """What keeps exported models from running, if anything."""
    problem = import_problem('onnxruntime', dists)
    if problem and importlib.util.find_spec('onnxruntime') is None:
        return problem._replace(what=f'{problem.what} (only exported models need it)')
    return problem


def devices() -> str:
    """CPU cores that this process may use, and the CUDA devices that torch sees."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    import torch

    cuda = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f'{cores} CPU cores, {len(cuda)} CUDA devices{": " if cuda else ""}{", ".join(cuda)}'


def main() -> int:
    """Print the report; 0 if the package is usable here, 1 if there is a problem."""
    dists = installed_distributions()
    print(f'vit5_dense {__version__}   {Path(__file__).parent}')
    print(f'Python {platform.python_version()}   {sys.executable}', flush=True)
    print('\n'.join(version_rows(dists)), flush=True)

    problems = conflicts(dists) + core_problems(dists)
    absent: list[Problem] = []
    runtime = runtime_problem(dists)
    if 'torch' in missing_core() and not runtime:
        print('exported models only, by python -m vit5_dense.runtime')
        problems, absent = [], problems
    elif not problems:
        problems, absent, ops = framework_problems(dists)
        print(f'compiled ops {"yes" if ops else "no"}')
        print(f'devices      {devices()}')
        absent += [runtime] if runtime else []
    for label, group in (('note', absent), ('problem', problems)):
        for problem in group:
            print(f'{label + ":":<9}{problem.what}\n{"mend:":>9}{"":1}{problem.mend}')
    print(f'{len(problems)} problems' if problems else 'ready')
    return 1 if problems else 0


if __name__ == '__main__':
    raise SystemExit(main())
