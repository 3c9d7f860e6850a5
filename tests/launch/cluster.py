"""A SLURM of one node for tests: its own munge, its own ports, in a folder of its own. Needs root, not a network."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
CONFIGURATION = """
ClusterName=pilot
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={control}
SlurmdPort={node}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2,batch_sched_delay=1
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why no cluster can be started here, in a few words; None if it can."""
    missing = [name for name in PROGRAMS if _find(name) is None]
    if missing:
        return f"SLURM is not installed: {', '.join(missing)} missing (Debian: slurm-wlm, munge)"
    return None if os.geteuid() == 0 else "a SLURM of one's own needs root"


class Cluster:
    """A running cluster; use it as a context."""

    def __init__(self, cpus: int = 2):
        self.folder = Path(tempfile.mkdtemp(prefix="slurm"))  # short: a socket's path has at most 107 letters
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self.cpus = cpus

    def __enter__(self) -> "Cluster":
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        control, node = _free_ports(2)
        host = socket.gethostname().split(".")[0]
        values = {"folder": self.folder, "host": host, "control": control, "node": node, "cpus": self.cpus}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = [f"--{what}={self.folder}/munge.{what.split('-')[0]}" for what in ("socket", "pid-file", "log-file")]
        self._start("munged", "--force", f"--key-file={key}", f"--seed-file={self.folder}/munge.seed", *files)
        self._start("slurmctld")
        self._start("slurmd")
        until = time.monotonic() + 60
        while "idle" not in (seen := self.command("sinfo", "--noheader", "--format=%t", check=False)):
            if time.monotonic() > until:
                raise RuntimeError(f"the node does not come up: {seen}; {self.folder} has the logs")
            time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            self.command("scancel", "--user=root", check=False)
            time.sleep(1)
        for name in ("slurmd.pid", "slurmctld.pid", "munge.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((self.folder / name).read_text()), signal.SIGTERM)
        time.sleep(1)
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *words: str, check: bool = True) -> str:
        """What a command of SLURM prints."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=check)
        return done.stdout + done.stderr

    def wait(self, seconds: float = 900) -> None:
        """Until the queue is empty."""
        until = time.monotonic() + seconds
        while self.command("squeue", "--noheader"):
            if time.monotonic() > until:
                raise RuntimeError(f"jobs do not end: {self.command('squeue')}")
            time.sleep(1)

    def _start(self, name: str, *options: str) -> None:
        program = _find(name)
        assert program is not None
        subprocess.run([program, *options], env={**os.environ, **self.environment}, check=True, timeout=60)


def _find(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for opened in sockets:
        opened.bind(("127.0.0.1", 0))
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports
