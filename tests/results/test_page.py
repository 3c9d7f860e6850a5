"""The page and its files: complete, self-contained, escaped, the same every time."""

import base64
import errno
import hashlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from synthetic_runs import write_comparison, write_run_directory

from data_lt.errors import UserError
from pilot_tal.metrics import DEFINITIONS
from pilot_tal.results import build_report, print_summary

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; tags must be closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def values(self, name):
        return [value for key, value in self.attributes if key == name]


def read(page) -> Page:
    return Page(page.read_text(encoding="utf-8"))


@pytest.fixture(params=["demo_report", "mixed_report"])
def report(request):
    return request.getfixturevalue(request.param)


def test_page_is_whole_and_needs_nothing_from_outside(report):
    page = read(report)
    assert not {"iframe", "object", "img", "link"} & set(page.tags)
    assert page.values("src") == []
    assert page.tags.count("script") == 1 + page.tags.count("section") - ("Not reached" in page.text)
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    text = report.read_text(encoding="utf-8")
    assert not re.search(r"@import|url\((?!#)", text)
    images = [link for link in page.values("xlink:href") if link.startswith("data:image/png;base64,")]
    links = [link for link in page.values("href") + page.values("xlink:href") if link not in images]
    policy = next(value for value in page.values("content") if value.startswith("default-src 'none'"))
    (allowed,) = re.findall(r"script-src 'sha256-([^']+)'$", policy)
    script = text[text.rindex("<script>") + 8 : text.rindex("</script>")]
    assert base64.b64decode(allowed) == hashlib.sha256(script.encode()).digest()
    for link in links:
        if not link.startswith("#"):
            assert (report.parent / link).is_file(), link
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    references = [link[1:] for link in links if link.startswith("#")] + re.findall(r"url\(#([^)]+)\)", text)
    assert references and set(references) <= set(ids)


def test_every_plot_is_on_the_page_and_a_file_of_its_own(demo_report):
    page = read(demo_report)
    files = sorted(path.stem for path in (demo_report.parent / "plots").glob("*/*.svg"))
    assert files == [
        "accuracy-after-task", "accuracy-by-class", "class-distribution", "confusion-ce", "confusion-tal",
        "difference-by-class-tal", "differences-a-mean", "differences-a-tail", "parts-after-task", "precision-recall",
        "precision-recall-by-task", "tal-state-tal", "task-matrix-ce", "task-matrix-difference-tal", "task-matrix-tal",
    ]  # fmt: skip
    assert page.tags.count("svg") == page.tags.count("figure") == len(files)
    for path in (demo_report.parent / "plots").glob("*/*.svg"):
        root = ElementTree.parse(path).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "#010203" not in path.read_text() and "currentColor" not in path.read_text()
    assert "currentColor" in demo_report.read_text()


def test_tables_come_in_three_formats(demo_report):
    tables = demo_report.parent / "tables"
    names = {path.stem for path in tables.iterdir()}
    assert names == {"overview", "paper_layout"} | {
        f"{kind}-demo-lt-l2p-5-tasks-pilot" for kind in ("metrics", "tasks", "confused", "seeds", "classes")
    }
    assert {path.name for path in tables.iterdir()} == {f"{n}.{e}" for n in names for e in ("csv", "md", "tex")}


def test_page_says_what_came_out_and_defines_its_terms(demo_report):
    text = " ".join(read(demo_report).text)
    assert "On the tail, TAL changes accuracy by" in text
    assert "it is not the paper's benchmark" in text and "each batch vote" in text
    for name, definition in DEFINITIONS.values():
        assert name in text and definition in text
    assert "6 finished runs, 0 unfinished." in text


def test_title_lists_the_losses(tmp_path, demo_report):
    assert "<title>CE and TAL on Demo-LT</title>" in demo_report.read_text(encoding="utf-8")
    small = {"counts": [9, 5, 4, 3], "task_sizes": (2, 2), "tests": 2, "steps_a_task": 2}
    write_comparison(tmp_path, losses=(("ce", 0), ("tal", 0), ("focal", 0)), seeds=(1,), **small)
    page = build_report([tmp_path], tmp_path / "report")
    assert "<title>CE, TAL and Focal on Demo-LT</title>" in page.read_text(encoding="utf-8")


def test_mixed_page_has_all_settings_and_all_caveats(mixed_report):
    text = " ".join(read(mixed_report).text)
    for title in (
        "Demo-LT · L2P · 3 tasks · pilot",
        "Demo-LT · LAE · 3 tasks · pilot",
        "Demo-LT · L2P · 3 tasks · fixed",
    ):
        assert title in text
    assert text.count("Unfinished and in no mean:") == 1 and "(0 of 3 tasks done)" in text
    assert "TAL did not calibrate in" in text and "One seed only (CE, TAL)" in text
    assert "TAL (LAMDA-PILOT)" in text and "Balanced softmax" in text


def test_hostile_names_are_text_and_nothing_else(mixed_report):
    page = read(mixed_report)
    text = " ".join(page.text)
    assert '<script>alert("x")</script> $x_1$ | a*b_c* \\input{b} & 100%' in text
    for path in mixed_report.parent.rglob("*"):
        if path.is_file():
            content = path.read_text(encoding="utf-8")
            assert "\x00" not in content and "\u202e" not in content
            if path.suffix != ".csv":
                assert "<script>alert" not in content, path
        assert re.fullmatch(r"[a-z0-9._-]+", path.name)
    tex = (mixed_report.parent / "tables" / "overview.tex").read_text()
    assert "\\input" not in tex and r"\textbackslash{}input\{b\}" in tex


def test_smallest_and_odd_runs_are_reported(tmp_path):
    tiny = {"counts": [3], "task_sizes": (1,), "tests": 1, "steps_a_task": 1}
    write_comparison(tmp_path / "one-class", seeds=(1,), **tiny)
    odd = {"counts": [5] * 30, "task_sizes": (2,) * 15, "tests": 1, "steps_a_task": 2}
    write_comparison(tmp_path / "many-tasks", seeds=(1, 2), **odd)
    write_run_directory(tmp_path / "unfinished", tasks_done=0)
    page = read(build_report([tmp_path], tmp_path / "report"))
    assert "1 class with 3 to 3 training images" in " ".join(page.text)
    only = read(build_report([tmp_path / "unfinished"], tmp_path / "report2"))
    assert "No run has finished" in " ".join(only.text)


def test_overview_plot_tells_data_and_method(tmp_path):
    for most in (300, 400):
        options = {"counts": [most, 9, 5, 3], "task_sizes": (2, 2), "tests": 2, "steps_a_task": 2}
        runs = tmp_path / str(most)
        write_comparison(runs, dataset="imagenetr_lt", method="coda_prompt", seeds=(1,), **options)
    build_report([tmp_path], tmp_path / "report")
    plot = (tmp_path / "report" / "plots" / "overview" / "differences-a-tail.svg").read_text(encoding="utf-8")
    for text in ("(3–300 images a class)", "(3–400 images a class)", "CODA-Prompt · 2 tasks · pilot · TAL"):
        assert text in plot


def test_summary_fits_a_terminal_and_prints_names_literally(mixed_runs):
    out = StringIO()
    print_summary([mixed_runs], Console(file=out, width=100))
    text = out.getvalue()
    assert "On the tail, TAL changes accuracy by" in text and "[l](javascript:1)" in text.replace("\n", "")
    assert max(map(len, text.splitlines())) <= 100


def command(*arguments, cwd=None):
    line = [sys.executable, "-m", "pilot_tal", "report", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, env={**os.environ, "COLUMNS": "120"})


def test_command_writes_beside_the_runs(tmp_path):
    small = {"counts": [9, 5, 4, 3], "task_sizes": (2, 2), "tests": 2, "steps_a_task": 2}
    paths = write_comparison(tmp_path / "runs", seeds=(1,), **small)
    done = command(tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "report" / "index.html").is_file()
    assert "On the tail, TAL changes accuracy by" in done.stdout
    assert done.stdout.splitlines()[-1] == f"report: {tmp_path / 'runs' / 'report' / 'index.html'}"
    done = command(*paths, "--output", tmp_path / "elsewhere")
    assert done.returncode == 0 and (tmp_path / "elsewhere" / "index.html").is_file()
    # Two processes, hence two hash seeds: the same runs give the same bytes.
    files = [path.relative_to(tmp_path / "elsewhere") for path in (tmp_path / "elsewhere").rglob("*.*")]
    assert len(files) == 1 + 7 * 3 + 15
    for name in files:
        assert (tmp_path / "elsewhere" / name).read_bytes() == (tmp_path / "runs/report" / name).read_bytes(), name


def test_command_refuses_an_empty_path(tmp_path, demo_runs):
    for arguments in ([""], [" "], [demo_runs, ""], [demo_runs, "-o", ""]):
        done = command(*arguments, cwd=tmp_path)
        assert done.returncode == 2 and "is empty; give a path" in done.stderr and len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path, demo_runs, monkeypatch):
    written = []

    def full(path, content):
        written.append(path)
        if len(written) > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, content)

    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"cannot write to .*report: No space left on device"):
        build_report([demo_runs], tmp_path / "report")
    assert len(written) == 21 and list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_leaves_the_one_before(tmp_path, demo_runs, monkeypatch):
    page = build_report([demo_runs], tmp_path / "report")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(UserError):
        build_report([demo_runs], page.parent)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_command_refuses_what_is_no_run(tmp_path):
    for given, sentence in ((tmp_path, "no runs found in"), (tmp_path / "no", "is not a directory")):
        done = command(given)
        assert done.returncode == 2 and sentence in done.stderr and len(done.stderr.splitlines()) == 1
    path = write_run_directory(tmp_path, counts=[9, 5], task_sizes=(2,), tests=2)
    (path / "predictions" / "task00.csv").write_text("image,true,pred\na,0,7\n")
    done = command(tmp_path)
    assert done.returncode == 2 and "task00.csv is damaged" in done.stderr
