"""A process that lost its lock while it was suspended changes nothing when it continues."""

import os
import sys
import threading
from pathlib import Path

import pytest
from helpers.tiny import result_files
from helpers.written import RECORD, execute

from data_lt.errors import UserError
from pilot_tal.engine.checkpoint import load_checkpoint
from pilot_tal.record import lock as locks
from pilot_tal.record.run_dir import load_run

WRITES = ("os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate")


class Suspension:
    """Calls `meanwhile` once, immediately before the given write below a directory."""

    def __init__(self):
        self.path, self.left, self.meanwhile, self.at = None, -1, None, ""
        sys.addaudithook(self.hook)

    def hook(self, event, arguments):
        if self.path is None or not (event in WRITES or (event == "open" and self._is_write(arguments))):
            return
        if not any(str(self.path) in str(name) for name in arguments[:2]):
            return
        self.left -= 1
        if self.left == -1:
            path, self.path, self.at = self.path, None, f"{event} {arguments[:2]}"
            self.meanwhile()
            self.path = path

    @staticmethod
    def _is_write(arguments) -> bool:
        return isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR) != 0


SUSPENSION = Suspension()


@pytest.fixture(autouse=True)
def _dead(monkeypatch):
    """To whoever waits for a lock, its owner seems dead."""
    monkeypatch.setattr(locks, "_is_alive", lambda owner: False if owner else None)


def content(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def suspended(path: Path, moment: int, meanwhile) -> bool:
    """Executes a run while another process trains it during one of its writes; returns whether that write occurred."""
    SUSPENSION.left, SUSPENSION.meanwhile, SUSPENSION.path = moment, meanwhile, path
    try:
        execute(path)
    except UserError as error:
        assert any(cause in str(error) for cause in ("another process", "is gone", "cannot write"))
    finally:
        SUSPENSION.path = None
    return SUSPENSION.left < 0


def test_suspended_owner_never_changes_a_finished_run(tmp_path):
    for moment in range(1000):
        path, finished = tmp_path / str(moment), {}

        def finish(path=path, finished=finished):
            execute(path)
            finished.update(content(path))

        if not suspended(path, moment, finish):
            break
        assert content(path) == finished, SUSPENSION.at
        assert load_run(path).finished and load_checkpoint(path).tasks_done == RECORD.num_tasks
    assert moment > 100


def test_successor_at_work_finishes_as_if_its_predecessor_had_not_woken_up(tmp_path):
    execute(tmp_path / "whole")
    for moment in range(1, 1000, 4):
        path = tmp_path / str(moment)
        working, woken = threading.Event(), threading.Event()

        def pause(working=working, woken=woken):
            working.set()
            woken.wait()

        successor = threading.Thread(target=execute, args=(path, RECORD, pause))
        happened = suspended(path, moment, lambda: (successor.start(), working.wait(10)))  # noqa: B023
        woken.set()
        if not happened:
            break
        successor.join()
        assert result_files(path) == result_files(tmp_path / "whole"), SUSPENSION.at
    assert moment > 100
