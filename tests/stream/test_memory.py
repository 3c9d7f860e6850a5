"""How much memory is left."""

from pilot_tal.stream import memory


def test_free_memory_respects_a_container(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    machine = memory.free_memory()
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert memory.free_memory() == 3000 < machine
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_memory() > 3000
