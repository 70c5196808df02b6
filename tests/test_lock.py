import subprocess
import sys
from pathlib import Path

import pytest

from tiny_run import ENV
from vit5_dense.errors import UserError
from vit5_dense.lock import sole_user

HOLDER = """
import sys, time
from pathlib import Path
from vit5_dense.lock import sole_user
with sole_user(Path(sys.argv[1])):
    print('held', flush=True)
    time.sleep(60)
"""


def test_a_folder_has_one_user_until_that_is_gone(tmp_path: Path) -> None:
    """However it ends: here it is killed."""
    command = [sys.executable, '-c', HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENV) as holder:
        assert holder.stdout.readline() == 'held\n'
        with (
            pytest.raises(UserError, match=f'process {holder.pid}.*--work-dir'),
            sole_user(tmp_path),
        ):
            pass
        holder.kill()
    with sole_user(tmp_path):
        pass
