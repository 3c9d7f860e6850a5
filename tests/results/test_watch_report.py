"""`pilot-tal report RUNS --watch` follows runs that go on; a page without it shows unfinished runs as well."""

import signal

from helpers.cli import ask, process
from synthetic_runs import write_run_directory

from pilot_tal.record.lock import locked
from pilot_tal.record.states import note_plan
from pilot_tal.results import build_report, watch
from pilot_tal.results.watch import watch_report

SMALL = {"counts": [9, 5, 4, 3], "task_sizes": (2, 2), "tests": 3, "steps_a_task": 2}
RELOAD = 'http-equiv="refresh"'


def moments(monkeypatch, *steps):
    """Lets a step happen whenever the watch would sleep."""
    left = list(steps)
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: left.pop(0)())
    return left


def test_watch_rewrites_the_page_until_all_runs_are_done(tmp_path, monkeypatch):
    page, pages = tmp_path / "report" / "index.html", []

    def step(change):
        def happens():
            pages.append((page.read_text(encoding="utf-8"), page.stat().st_mtime_ns))
            change()

        return happens

    write_run_directory(tmp_path, loss="ce", tasks_done=0, **SMALL)
    left = moments(
        monkeypatch,
        step(lambda: None),
        step(lambda: write_run_directory(tmp_path, loss="ce", tasks_done=1, **SMALL)),
        step(lambda: write_run_directory(tmp_path, loss="tal", tasks_done=0, **SMALL)),
        step(lambda: [write_run_directory(tmp_path, loss=loss, **SMALL) for loss in ("ce", "tal")]),
    )
    answer = ask("report", tmp_path, "--watch")
    assert answer.status == 0 and not left and "all runs are done" in answer.out, answer
    texts, times = zip(*pages, strict=True)
    assert [text.count(" of 2</td>") for text in texts] == [1, 1, 1, 2]
    assert times[0] == times[1] < times[2], "what has not changed is not written again"
    assert all(RELOAD in text and "Watched:" in text for text in texts)
    last = page.read_text(encoding="utf-8")
    assert RELOAD not in last and "Watched:" not in last and "2 finished runs, 0 unfinished." in last
    assert last.encode() == build_report([tmp_path], tmp_path / "again").read_bytes()


def test_unfinished_runs_are_shown_as_such(tmp_path):
    running = write_run_directory(tmp_path, loss="ce", tasks_done=1, **SMALL)
    failed = write_run_directory(tmp_path, loss="tal", tasks_done=0, **SMALL)
    (failed / "error.txt").write_text("the disk <b>is full", encoding="utf-8")
    with locked(running):
        page = build_report([tmp_path], tmp_path / "report").read_text(encoding="utf-8")
    assert RELOAD not in page and "Unfinished runs:" in page
    rows = [line for line in page.splitlines() if " of 2</td>" in line]
    assert len(rows) == 2
    of = {path: next(row for row in rows if path.name in row) for path in (running, failed)}
    assert ">running<" in of[running] and ">1 of 2<" in of[running] and "–" not in of[running]
    assert ">failed <small>the disk &lt;b&gt;is full</small><" in of[failed] and of[failed].count("–") == 3


def test_watch_waits_for_planned_runs(tmp_path, monkeypatch):
    done = write_run_directory(tmp_path, loss="ce", **SMALL)
    note_plan(tmp_path, [done.name, "to-come"])

    def stop():
        raise KeyboardInterrupt

    lines: list[str] = []
    left = moments(monkeypatch, lambda: None, stop)
    watch_report([tmp_path], tmp_path / "report", lines.append)
    assert not left and "1 done, 1 not started" in lines[0] and lines[1:] == ["stopped watching"]


def test_watch_waits_for_the_first_run(tmp_path, monkeypatch):
    lines: list[str] = []

    def begin():
        write_run_directory(tmp_path, loss="ce", **SMALL)
        for file in (tmp_path / ".plans").iterdir():
            file.unlink()

    moments(monkeypatch, lambda: note_plan(tmp_path, ["to-come"]), lambda: None, begin)
    assert watch_report([tmp_path], tmp_path / "report", lines.append) is not None
    assert [("no runs found" in line, "1 done" in line) for line in lines[:2]] == [(True, False), (False, True)]
    assert lines[2:] == ["all runs are done"]


def test_missing_folder_raises(tmp_path):
    answer = ask("report", tmp_path / "nowhere", "--watch")
    assert answer.status == 2 and "is not a directory" in answer.err
    assert not list(tmp_path.iterdir())


def test_ctrl_c_writes_a_page_that_does_not_reload(tmp_path):
    write_run_directory(tmp_path, loss="ce", tasks_done=1, **SMALL)
    watching = process("report", tmp_path, "--watch")
    page = tmp_path / "report" / "index.html"
    assert "Ctrl-C ends" in watching.stdout.readline()
    assert str(page) in watching.stdout.readline()
    assert RELOAD in page.read_text(encoding="utf-8")
    watching.send_signal(signal.SIGINT)
    printed = watching.communicate(timeout=60)[0]
    assert watching.returncode == 0 and "Traceback" not in printed, printed
    assert RELOAD not in page.read_text(encoding="utf-8")
    assert not list(tmp_path.rglob("*.tmp"))
