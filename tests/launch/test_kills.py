"""Workers killed at random moments: every run still ends with the bytes of an undisturbed study.

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

KILLS = int(os.environ.get("PILOT_TAL_KILLS", "4"))
GRID = [
    "tasks=3",
    "losses=ce,tal",
    f"seeds={','.join(map(str, range(1, 3 + KILLS // 10)))}",
    "epochs=3",
    "batch_size=3",
]


def test_killed_workers_change_nothing(tmp_path):
    """However fast the machine is: a study that ends before it had all kills is followed by another one."""
    images = make_images(tmp_path / "images")
    whole = settings(images, tmp_path / "whole", *GRID, "jobs=1", "threads=1")
    assert command("compare", "l2p", "folder_lt", *whole)[0] == 0
    moments, kills, studies = random.Random(0), 0, 0
    while kills < KILLS:
        output = tmp_path / f"killed {studies}"
        studies, status = studies + 1, None
        while status != 0:  # a run that was killed twice fails; the same command resumes it
            started = process("compare", "l2p", "folder_lt", *settings(images, output, *GRID, "jobs=2"))
            os.set_blocking(started.stdout.fileno(), False)
            while started.poll() is None:
                time.sleep(moments.uniform(0.05, 1.0))
                drain(started)
                workers = children_of(started.pid)
                if kills < KILLS and workers:
                    kills += kill(moments.choice(workers))
                assert two_in_one(output) == []
            status = started.returncode
            drain(started)
            started.stdout.close()
        assert contents(output) == contents(tmp_path / "whole")  # and so no lock, no .tmp, no error is left
        assert all(result_files(run) for run in output.glob("*-l2p-*"))


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
    """Runs whose log is the output of two living processes; a program that one of them has started is no second one."""
    logs, parents = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            target = os.readlink(entry / "fd" / "1")
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if target.startswith(str(output)):
            logs[entry.name], parents[entry.name] = target, parent
    found = [log for pid, log in logs.items() if logs.get(parents[pid]) != log]
    return [log for log in set(found) if found.count(log) > 1]
