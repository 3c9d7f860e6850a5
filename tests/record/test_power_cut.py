"""After a power cut at any moment a run is readable, resumable, and has every task whose commit had returned."""

import os
import shutil
from pathlib import Path

import pytest
from helpers.written import RECORD, add_task, execute

from data_lt.files import write_text
from pilot_tal.engine.checkpoint import load_checkpoint, resume
from pilot_tal.record.run_dir import load_run
from pilot_tal.record.writer import open_run


class Disk:
    """Follows the writes below a directory and knows what is on disk: what was synced, of files and of directories.

    Attributes:
        states: What a power cut may leave, as pairs of content and tasks committed: all that was not synced is lost,
            or renames and deletions have reached the disk before the content of files.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch):
        self.root, self.committed = root, 0
        self.content: dict[int, bytes] = {}  # of a synced file, by inode
        self.entries: dict[Path, dict[str, int]] = {}  # of a synced directory
        self.states: list[tuple[dict[str, bytes], int]] = []
        for name in ("replace", "unlink", "mkdir", "link"):
            patch.setattr(os, name, self._followed(getattr(os, name)))
        patch.setattr(os, "fsync", self.sync)

    def _followed(self, function):
        def call(*arguments, **options):
            result = function(*arguments, **options)
            self.keep_states()
            return result

        return call

    def sync(self, handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_dir():
            self.entries[path] = self._listed(path)
        else:
            self.content[os.fstat(handle).st_ino] = path.read_bytes()
        self.keep_states()

    def _listed(self, folder: Path) -> dict[str, int]:
        return {file.name: file.stat().st_ino for file in folder.iterdir()}

    def keep_states(self) -> None:
        for listed in (lambda folder: self.entries.get(folder, {}), self._listed):
            state: dict[str, bytes] = {}
            self._walk(self.root, listed, state)
            self.states.append((state, self.committed))

    def _walk(self, folder: Path, listed, state: dict[str, bytes]) -> None:
        for name, inode in listed(folder).items() if folder.is_dir() else ():
            if (folder / name).is_dir():
                self._walk(folder / name, listed, state)
            elif not name.startswith(".lock"):
                state[str((folder / name).relative_to(self.root))] = self.content.get(inode, b"")


def test_run_survives_a_power_cut_at_any_moment(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        disk = Disk(tmp_path / "run", patch)
        with open_run(tmp_path / "run") as writer:
            resume(writer)
            writer.write_record(RECORD)
            writer.commit(RECORD, 0)
            for done in range(1, RECORD.num_tasks + 1):
                add_task(writer, done)
                disk.committed = done
    seen = set()
    for state, committed in disk.states:
        if (key := (tuple(sorted(state.items())), committed)) in seen:
            continue
        seen.add(key)
        path = tmp_path / "after"
        for name, content in state.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        if "run.json" in state:
            assert load_run(path).tasks_done in (committed, committed + 1)
            checkpoint = load_checkpoint(path)
            assert (checkpoint.tasks_done if checkpoint else 0) in (committed, committed + 1)
        else:
            assert not committed
        execute(path)
        assert load_run(path).finished and load_checkpoint(path).tasks_done == RECORD.num_tasks
        shutil.rmtree(path)
    assert len(seen) > 40


def test_written_file_and_its_new_directories_are_on_disk(tmp_path, monkeypatch):
    disk = Disk(tmp_path, monkeypatch)
    write_text(tmp_path / "a" / "b" / "file.txt", "text")
    disk.keep_states()
    assert disk.states[-2][0] == {"a/b/file.txt": b"text"}
