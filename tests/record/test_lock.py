"""One process at a time in a directory: seen, not seen, dead, asleep, killed in the middle, all at once."""

import contextlib
import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from data_lt.errors import UserError
from pilot_tal.record import lock as locks
from pilot_tal.record.lock import Busy, locked, owner_of
from pilot_tal.record.writer import clean_finished

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def quick(monkeypatch):
    """Seconds become hundredths."""
    monkeypatch.setattr(locks, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(locks, "DEAD_SECONDS", 0.5)
    monkeypatch.setattr(locks, "LOOK_SECONDS", 0.02)


@pytest.fixture
def far(monkeypatch):
    """Every process seems to be on a machine of its own, so that only renewals tell who lives."""
    monkeypatch.setattr(locks, "_space", lambda: f"machine of {os.getpid()}")


def files(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob(".lock*"))


def hold(path: Path, events, seconds: float) -> None:
    with locked(path):
        events.send("held")
        time.sleep(seconds)


def hear(heard) -> str:
    assert heard.poll(30)
    return heard.recv()


def start_holder(path: Path, seconds: float = 60):
    heard, events = FORK.Pipe(duplex=False)
    holder = FORK.Process(target=hold, args=(path, events, seconds))
    holder.start()
    assert hear(heard) == "held"
    return holder


def test_lock_is_removed_after_success_and_released_after_failure(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    assert files(tmp_path) == [".lock-000001"] and owner_of(tmp_path) is None
    with locked(tmp_path) as lock:
        assert files(tmp_path) == [".lock-000001", ".lock-000002"]
        lock.check()
    assert files(tmp_path) == []


def test_second_process_gets_the_name_of_the_owner(tmp_path, quick):
    holder = start_holder(tmp_path)
    with pytest.raises(Busy, match=f"process {holder.pid}\\)"), locked(tmp_path):
        pass
    assert f"process {holder.pid}" in owner_of(tmp_path).where
    holder.kill()
    holder.join()
    assert owner_of(tmp_path) is None
    with locked(tmp_path):  # at once: its death is seen
        pass
    assert files(tmp_path) == []


def test_stopped_process_on_this_machine_keeps_its_lock(tmp_path, quick):
    holder = start_holder(tmp_path)
    os.kill(holder.pid, signal.SIGSTOP)
    time.sleep(1.0)
    with pytest.raises(Busy), locked(tmp_path):
        pass
    holder.kill()
    holder.join()


def test_elsewhere_a_living_owner_is_known_by_its_renewals_and_a_dead_one_by_its_silence(tmp_path, quick, far):
    holder = start_holder(tmp_path)
    with pytest.raises(Busy), locked(tmp_path):
        pass
    holder.kill()
    holder.join()
    before = time.monotonic()
    with locked(tmp_path) as lock:
        assert lock.number == 2
    assert 0.4 < time.monotonic() - before < 5


def test_no_clock_of_another_machine_counts(tmp_path, quick, far):
    """Hours old or from the future by its time stamp: a renewal is a renewal."""
    for hours in (-5, 5):
        holder = start_holder(tmp_path, 1.0)
        (file,) = tmp_path.glob(".lock*")
        for _ in range(3):
            os.utime(file, (time.time() + 3600 * hours,) * 2)
        with pytest.raises(Busy), locked(tmp_path):
            pass
        holder.join()
        assert holder.exitcode == 0


def asleep(path: Path, events) -> None:
    try:
        with locked(path) as lock:
            events.send("held")
            os.kill(os.getpid(), signal.SIGSTOP)
            lock.check()
            events.send("wrote")
    except UserError as error:
        events.send(str(error))


def test_suspended_owner_changes_nothing_after_takeover(tmp_path, quick, far):
    heard, events = FORK.Pipe(duplex=False)
    sleeper = FORK.Process(target=asleep, args=(tmp_path, events))
    sleeper.start()
    assert hear(heard) == "held"
    time.sleep(0.2)
    with locked(tmp_path) as lock:
        os.kill(sleeper.pid, signal.SIGCONT)
        assert "has taken over" in hear(heard)
        sleeper.join()
        lock.check()
        assert files(tmp_path) == [".lock-000001", ".lock-000002"]
    assert files(tmp_path) == []


def test_stale_view_cannot_take_a_used_number(tmp_path):
    """Between its look and its file, others came and went."""
    for _ in range(3):
        with pytest.raises(KeyError), locked(tmp_path):
            raise KeyError
    with locked(tmp_path) as newer:
        for seen in range(4):
            with pytest.raises(Busy):
                locks._create(tmp_path, seen)
        newer.check()
    assert files(tmp_path) == []


def test_slow_disk_does_not_count_as_a_dead_owner(tmp_path, quick, far, monkeypatch):
    """Both wait for the same server: the first look after it is back must not count its silence."""
    (tmp_path / ".lock-000001").write_text(json.dumps({"host": "far", "space": "x", "pid": 1, "beat": 1}))
    read, looks = locks._read, []

    def slow(file):
        looks.append(time.monotonic())
        if len(looks) == 3:
            time.sleep(0.6)
        if len(looks) == 5:
            file.write_text(json.dumps({"host": "far", "space": "x", "pid": 1, "beat": 2}))
        return read(file)

    monkeypatch.setattr(locks, "_read", slow)
    with pytest.raises(Busy), locked(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"space": 5}', '{"pid": "x"}', "\x00" * 50, "é" * 2000])
def test_damaged_lock_is_taken_over_when_not_renewed(content, tmp_path, quick):
    owned = json.dumps({"space": locks._space(), "pid": "x"}) if content == '{"pid": "x"}' else content
    (tmp_path / ".lock-000003").write_text(owned, encoding="utf-8")
    with locked(tmp_path) as lock:
        assert lock.number == 4
    assert files(tmp_path) == []


def test_empty_lock_of_a_process_killed_before_it_wrote_is_taken_over_soon(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(locks, "DEAD_SECONDS", 60)
    (tmp_path / ".lock-000001").touch()
    before = time.monotonic()
    with locked(tmp_path) as lock:
        assert lock.number == 2 and time.monotonic() - before < 10


def test_progress_is_published_with_the_next_renewal(tmp_path, quick):
    with locked(tmp_path) as lock:
        for doing in (
            {"position": "task 1/5 " + "é" * 20},
            {"position": "x"},
            {"position": "long " * 500},
            {"position": "end"},
        ):
            lock.doing = doing
            time.sleep(0.2)
            seen = owner_of(tmp_path).doing
            assert seen == (doing if len(doing["position"]) < 1000 else {})


def test_second_process_cannot_create_the_same_lock(tmp_path):
    with locked(tmp_path):
        with pytest.raises(Busy), locked(tmp_path):
            pass
        with pytest.raises(Busy):
            locks._create(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


def test_full_disk_leaves_no_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.Lock, "content", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match=r"cannot write to .*: No space left"), locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_lock_of_a_process_killed_in_its_last_moment_is_removed(tmp_path, quick):
    holder = start_holder(tmp_path)
    clean_finished(tmp_path)
    assert files(tmp_path) == [".lock-000001"]  # it lives
    holder.kill()
    holder.join()
    clean_finished(tmp_path)
    assert files(tmp_path) == []


def compete(path: Path, seed: int, rounds: int) -> None:
    """Works in the directory again and again; leaves a mark that nobody else may see while it does."""
    locks.RENEW_SECONDS, locks.DEAD_SECONDS, locks.LOOK_SECONDS = 0.05, 1.0, 0.02
    moments = random.Random(seed)
    for _ in range(rounds):
        try:
            with locked(path):
                mark = path / f"mark-{os.getpid()}"
                mark.touch()
                others = [other for other in path.glob("mark-*") if other != mark and alive(other)]
                if others:
                    (path / "TWO").touch()
                time.sleep(moments.uniform(0, 0.02))
                mark.unlink()
                raise KeyError  # unfinished: a lock is removed only where nothing is left to do
        except Busy:
            time.sleep(moments.uniform(0, 0.01))
        except KeyError:
            pass


def alive(mark: Path) -> bool:
    return locks._started(int(mark.name.removeprefix("mark-"))) is not None


def test_many_processes_under_kills_are_never_two_at_once(tmp_path):
    moments = random.Random(1)
    processes = [FORK.Process(target=compete, args=(tmp_path, number, 10**9)) for number in range(4)]
    for process in processes:
        process.start()
    for kills in range(40):
        time.sleep(moments.uniform(0, 0.1))
        number = moments.randrange(len(processes))
        processes[number].kill()
        processes[number].join()
        processes[number] = FORK.Process(target=compete, args=(tmp_path, 100 + kills, 10**9))
        processes[number].start()
    for process in processes:
        process.kill()
        process.join()
    assert len(files(tmp_path)) > 40 and not (tmp_path / "TWO").exists()
    with locked(tmp_path):
        pass
    assert files(tmp_path) == []


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("number", [1, 2])
def test_overtaken_owner_neither_renews_nor_overwrites_nor_removes(number, failed, tmp_path, quick):
    """Its successor has the next number, or its own one if all lock files were removed in between."""
    successor = json.dumps({"host": "far", "space": "x", "pid": 1, "token": "another"}).encode()
    with contextlib.suppress(KeyError), locked(tmp_path) as lock:
        while b'"beat": 0' in lock.file.read_bytes():
            time.sleep(0.02)
        (tmp_path / f".lock-{number:06d}").write_bytes(successor)
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        time.sleep(0.3)
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
        assert not lock._thread.is_alive()
        if failed:
            raise KeyError
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_unmounted_disk_is_named_and_the_lock_is_renewed_when_it_is_back(tmp_path, quick):
    with locked(tmp_path / "run") as lock:
        (tmp_path / "run").rename(tmp_path / "elsewhere")
        with pytest.raises(UserError, match=r"the lock of .* is gone: the disk was unmounted"):
            lock.check()
        time.sleep(0.2)
        (tmp_path / "elsewhere").rename(tmp_path / "run")
        before = lock.file.read_bytes()
        time.sleep(0.2)
        lock.check()
        assert lock.file.read_bytes() != before
