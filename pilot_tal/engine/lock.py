"""One process at a time in a run directory."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pilot_tal.errors import PilotTalError

try:
    import fcntl
except ImportError:  # a platform without flock
    fcntl = None


@contextlib.contextmanager
def only_process(path: Path) -> Iterator[None]:
    """Holds the directory `path`; the system lets go of it when the process ends, however it ends.

    Raises:
        PilotTalError: another process holds it, or it cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise PilotTalError(f"cannot write to {path}: {error.strerror or error}") from error
    try:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise PilotTalError(
                    f"another process is working in {path}; wait for it, or choose other seeds or another output"
                ) from error
            except OSError as error:
                raise PilotTalError(
                    f"cannot lock {path} ({error.strerror or error}); choose an output on another file system"
                ) from error
        yield
    finally:
        os.close(handle)
