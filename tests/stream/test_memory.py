"""How much memory is left."""

import pytest

from pilot_tal.stream import memory


@pytest.fixture(autouse=True)
def no_container(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)


def test_free_memory_is_what_the_system_says_is_available(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    memory.MEMINFO.write_text("MemTotal:  900 kB\nMemFree:  100 kB\nMemAvailable:  700 kB\n")
    assert memory.free_memory() == 700 * 1024
    for content in ("MemTotal:  900 kB\n", "MemAvailable:\n", "nothing\n"):
        memory.MEMINFO.write_text(content)
        assert memory.free_memory() > 1 << 20  # counted in pages


def test_files_that_a_container_keeps_count_as_free(tmp_path):
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("4500\n")
    (tmp_path / "memory.stat").write_text("active_file 3000\ninactive_file 400\n")
    assert memory.free_memory() == 900
    (tmp_path / "memory.current").write_text("6000\n")
    assert memory.free_memory() == 0


def test_free_memory_respects_a_container(tmp_path):
    machine = memory.free_memory()
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert memory.free_memory() == 3000 < machine
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_memory() > 3000
