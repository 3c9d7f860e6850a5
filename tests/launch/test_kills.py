"""Workers killed at random moments: every cell still ends with the bytes of an undisturbed plan.

PILOT_TAL_KILLS=60 makes it sixty kills (by hand); the suite has a handful.
"""

import os
import random
import signal
import time
from pathlib import Path

from helpers.cli import command, process
from helpers.images import make_images
from helpers.tiny import result_files, settings
from test_launch import children_of, contents

KILLS = int(os.environ.get("PILOT_TAL_KILLS", "6"))
GRID = [
    "tasks=3",
    "losses=ce,tal",
    f"seeds={','.join(map(str, range(1, 3 + KILLS // 10)))}",
    "epochs=3",
    "batch_size=3",
]


def test_killed_workers_change_nothing(tmp_path):
    images = make_images(tmp_path / "images")
    whole = settings(images, tmp_path / "whole", *GRID, "jobs=1", "threads=1")
    assert command("compare", "l2p", "folder_lt", *whole)[0] == 0
    moments, kills, starts, status = random.Random(0), 0, 0, None
    wanted = settings(images, tmp_path / "killed", *GRID, "jobs=2")
    while status != 0:
        started = process("compare", "l2p", "folder_lt", *wanted)
        starts += 1
        assert starts <= 10 + KILLS
        os.set_blocking(started.stdout.fileno(), False)
        while started.poll() is None:
            time.sleep(moments.uniform(0.05, 1.0))
            drain(started)
            workers = children_of(started.pid)
            if kills < KILLS and workers:
                kills += kill(moments.choice(workers))
            assert two_in_one(tmp_path / "killed") == []
        status = started.returncode
        drain(started)
        started.stdout.close()
    print(f"{kills} kills, {starts} starts")
    assert kills == KILLS
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")  # and so no lock, no .tmp, no error is left
    assert all(result_files(run) for run in (tmp_path / "killed").glob("*-l2p-*"))


def kill(pid: int) -> int:
    try:
        os.kill(pid, signal.SIGKILL)
        return 1
    except ProcessLookupError:
        return 0


def drain(started) -> None:
    while started.stdout.read(1 << 16):
        pass


def two_in_one(output: Path) -> list[str]:
    """Cells that more than one living process has open for writing its log."""
    logs = []
    for link in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith(str(output)) and Path(f"/proc/{link.parts[2]}/stat").exists():
            logs.append(target)
    return [log for log in set(logs) if logs.count(log) > 1]
