import errno
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tiny_run import ENV
from vit5_dense import lock
from vit5_dense.errors import UserError
from vit5_dense.lock import in_turn, sole_user

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


def test_a_file_system_without_locks_is_told_of_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, 'No locks available')

    monkeypatch.setattr(lock.fcntl, 'lockf', refuse)
    entered = []
    with sole_user(tmp_path):
        entered.append('sole_user')
    with in_turn(tmp_path / 'file'):
        entered.append('in_turn')
    assert entered == ['sole_user', 'in_turn']
    assert f'{tmp_path} cannot be locked (No locks available)' in capsys.readouterr().out


FIRST = """
import sys
from pathlib import Path
from vit5_dense.lock import in_turn
with in_turn(Path(sys.argv[1], 'lock')):
    print('in', flush=True)
    sys.stdin.readline()
    Path(sys.argv[1], 'done').touch()
"""


def test_processes_come_in_turn_and_leave_no_lock_behind(tmp_path: Path) -> None:
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
    command = [sys.executable, '-c', FIRST, str(tmp_path)]
    with subprocess.Popen(command, **pipes, text=True, env=ENV) as first:
        assert first.stdout.readline() == 'in\n'
        threading.Timer(0.5, lambda: print(file=first.stdin, flush=True)).start()
        with in_turn(tmp_path / 'lock'):
            assert (tmp_path / 'done').exists()
    assert [path.name for path in tmp_path.iterdir()] == ['done']
