"""How much memory is left."""

import pytest

from pilot_tal.stream import store as memory


@pytest.fixture(autouse=True)
def no_container(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "OWN_CGROUPS", tmp_path / "own")


def test_free_memory_equals_the_systems_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    memory.MEMINFO.write_text("MemTotal:  900 kB\nMemFree:  100 kB\nMemAvailable:  700 kB\n")
    assert memory.free_memory() == 700 * 1024
    for content in ("MemTotal:  900 kB\n", "MemAvailable:\n", "nothing\n"):
        memory.MEMINFO.write_text(content)
        assert memory.free_memory() > 1 << 20  # assumed


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


V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@pytest.mark.parametrize(
    ("own", "top", "names"),
    [
        ("0::/system.slice/slurmstepd.scope/job_7\n", "", V2),
        ("4:memory:/system.slice/slurmstepd.scope/job_7\n0::/\n", "memory", V1),
        ("5:cpu,cpuacct:/\n4:hugetlb,memory:/system.slice/slurmstepd.scope/job_7\n", "memory", V1),
    ],
)
def test_memory_limit_is_found_in_any_cgroup(tmp_path, own, top, names):
    """SLURM's job is a group in groups, none of which may be at the top; the narrowest counts."""
    (tmp_path / "own").write_text(own)
    job = tmp_path / top / "system.slice" / "slurmstepd.scope" / "job_7"
    job.mkdir(parents=True)
    limit, used, files = names
    (job / limit).write_text("5000\n")
    (job / used).write_text("2000\n")
    (job / "memory.stat").write_text(f"{files} 100\n")
    assert memory.free_memory() == 3100
    (job.parent / limit).write_text("4000\n")  # the group around it has less left
    (job.parent / used).write_text("3000\n")
    assert memory.free_memory() == 1000
    (job.parent / limit).write_text("9223372036854771712\n" if names == V1 else "max\n")
    assert memory.free_memory() == 3100


@pytest.mark.parametrize("own", ["", "nonsense\n", "0::/../../elsewhere\n"])
def test_groups_that_are_not_there_limit_nothing(tmp_path, own):
    machine = memory.free_memory()
    (tmp_path / "own").write_text(own)
    assert memory.free_memory() > machine // 2
