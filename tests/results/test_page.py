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

import pytest
from rich.console import Console
from synthetic_runs import write_comparison, write_run_directory

from data_lt.errors import UserError
from pilot_tal.metrics import DEFINITIONS
from pilot_tal.results import build, build_report, load_study, print_summary
from pilot_tal.results.findings import group_findings, headline, study_findings

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


def pages(report):
    return sorted(report.parent.glob("*.html"))


def test_pages_are_valid_and_load_nothing_from_outside(report):
    for file in pages(report):
        page, text = read(file), file.read_text(encoding="utf-8")
        assert not {"iframe", "object", "img", "link"} & set(page.tags)
        assert page.values("src") == [] and not [key for key, _ in page.attributes if key.startswith("on")]
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
        assert set(references) <= set(ids)


def test_every_group_has_a_page_that_the_overview_links(mixed_runs, mixed_report):
    study = load_study([mixed_runs])
    links = read(mixed_report).values("href")
    assert len(study.finished) == 4
    for group in study.finished:
        page = mixed_report.parent / f"{group.slug}.html"
        assert page.name in links and group.title in " ".join(read(page).text)
        assert "index.html" in read(page).values("href")
    assert {page.name for page in pages(mixed_report)} == {"index.html", *(f"{g.slug}.html" for g in study.finished)}


def test_study_of_one_group_is_one_page(demo_report):
    assert pages(demo_report) == [demo_report]
    text = " ".join(read(demo_report).text)
    assert "Conditions" in text and "Each class" in text and text.index("Conditions") < text.index("A_Mean")
    for name, definition in DEFINITIONS.values():
        assert name in text and definition in text


def test_plots_are_written_as_svg_pdf_and_png_on_request(demo_runs, demo_report, tmp_path):
    assert not (demo_report.parent / "plots").exists()
    report = build_report([demo_runs], tmp_path / "report", plots=True)
    found = {path.name for path in (report.parent / "plots").glob("*/*")}
    names = {
        "tradeoff", "accuracy-by-class", "after-task", "difference-by-class-tal", "tal-state-tal",
        "precision-recall-by-task", "task-matrix-ce", "task-matrix-tal", "confusion-ce", "confusion-tal",
        "changes-a-mean", "changes-a-tail",
    }  # fmt: skip
    assert found == {f"{name}.{kind}" for name in names for kind in ("svg", "pdf", "png")}
    assert read(report).tags.count("svg") == read(demo_report).tags.count("svg") == len(names)
    for path in (report.parent / "plots").glob("*/*"):
        start = path.read_bytes()[:8]
        assert start.startswith({".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG"}[path.suffix])
    assert "currentColor" in report.read_text() and "#010203" not in report.read_text()


def test_pages_of_large_studies_have_the_main_plots_only(tmp_path, monkeypatch):
    small = {"counts": [9, 5, 4, 3], "task_sizes": (2, 2), "tests": 2, "steps_a_task": 2, "seeds": (1,)}
    write_comparison(tmp_path / "runs", **small)
    write_comparison(tmp_path / "runs", method="lae", **small)
    counts = {}
    for limit in (1, 2):
        monkeypatch.setattr(build, "ALL_PLOTS_UP_TO", limit)
        report = build_report([tmp_path / "runs"], tmp_path / f"report{limit}")
        counts[limit] = [read(page).tags.count("figure") for page in pages(report) if page != report]
    assert counts[1] == [3, 3] and min(counts[2]) > 8


def test_short_tables_come_in_three_formats_and_long_ones_as_csv(demo_report):
    group = "demo-lt-l2p-5-tasks-pilot"
    short = {
        "conditions",
        "overview",
        "paper_layout",
        *(f"{kind}-{group}" for kind in ("conditions", "metrics", "changes")),
    }
    long = {f"{kind}-{group}" for kind in ("tasks", "confused", "runs", "classes")}
    expected = {f"{name}.{kind}" for name in short for kind in ("csv", "md", "tex")} | {f"{name}.csv" for name in long}
    assert {path.name for path in (demo_report.parent / "tables").iterdir()} == expected


def test_title_lists_the_losses(tmp_path):
    small = {"counts": [9, 5, 4, 3], "task_sizes": (2, 2), "tests": 2, "steps_a_task": 2}
    write_comparison(tmp_path, losses=(("ce", 0), ("tal", 0), ("focal", 0)), seeds=(1,), **small)
    page = build_report([tmp_path], tmp_path / "report")
    assert "<title>CE, TAL and Focal on Demo-LT</title>" in page.read_text(encoding="utf-8")


def test_findings_are_on_the_pages(mixed_runs, mixed_report):
    study = load_study([mixed_runs])
    overview = " ".join(read(mixed_report).text)
    assert all(str(finding) in overview for finding in (*headline(study), *study_findings(study)))
    for group in study.finished:
        text = " ".join(read(mixed_report.parent / f"{group.slug}.html").text)
        assert all(str(finding) in text for finding in group_findings(group))


def test_another_baseline_is_compared_with(demo_runs, tmp_path):
    report = build_report([demo_runs], tmp_path / "report", baseline="tal")
    text = " ".join(read(report).text)
    assert "CE against TAL, 3 shared seeds" in text and "TAL against CE" not in text
    with pytest.raises(UserError, match="ce, tal"):
        build_report([demo_runs], tmp_path / "other", baseline="focal")
    assert not (tmp_path / "other").exists()


def test_names_are_escaped_in_every_file(mixed_report):
    text = " ".join(part for page in pages(mixed_report) for part in read(page).text)
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
    assert len(pages(build_report([tmp_path], tmp_path / "report"))) == 3
    only = read(build_report([tmp_path / "unfinished"], tmp_path / "report2"))
    assert "No run has finished" in " ".join(only.text)


def test_summary_fits_a_terminal_and_prints_names_literally(mixed_runs):
    out = StringIO()
    print_summary([mixed_runs], Console(file=out, width=100))
    text = out.getvalue()
    assert "A_Tail of TAL" in text and "[l](javascript:1)" in text.replace("\n", "")
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
    assert "A_Tail of TAL" in done.stdout
    assert done.stdout.splitlines()[-1] == f"report: {tmp_path / 'runs' / 'report' / 'index.html'}"
    done = command(*paths, "--output", tmp_path / "elsewhere")
    assert done.returncode == 0 and (tmp_path / "elsewhere" / "index.html").is_file()
    # Two processes, hence two hash seeds: the same runs give the same bytes.
    files = [path.relative_to(tmp_path / "elsewhere") for path in (tmp_path / "elsewhere").rglob("*.*")]
    assert len(files) == 1 + 6 * 3 + 4
    for name in files:
        assert (tmp_path / "elsewhere" / name).read_bytes() == (tmp_path / "runs/report" / name).read_bytes(), name


def test_command_refuses_an_empty_path(tmp_path, demo_runs):
    for arguments in ([""], [" "], [demo_runs, ""], [demo_runs, "-o", ""]):
        done = command(*arguments, cwd=tmp_path)
        assert done.returncode == 2 and "is empty; give a path" in done.stderr and len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_report_that_cannot_be_written_leaves_nothing(tmp_path, demo_runs, monkeypatch):
    written = []

    def full(path, content):
        written.append(path)
        if len(written) > 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, content)

    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"cannot write to .*report: No space left on device"):
        build_report([demo_runs], tmp_path / "report")
    assert len(written) == 11 and list(tmp_path.iterdir()) == []


def test_report_that_cannot_be_written_leaves_the_one_before(tmp_path, demo_runs, monkeypatch):
    page = build_report([demo_runs], tmp_path / "report")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(UserError):
        build_report([demo_runs], page.parent)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_command_rejects_non_runs(tmp_path):
    for given, sentence in ((tmp_path, "no runs found in"), (tmp_path / "no", "is not a directory")):
        done = command(given)
        assert done.returncode == 2 and sentence in done.stderr and len(done.stderr.splitlines()) == 1
    path = write_run_directory(tmp_path, counts=[9, 5], task_sizes=(2,), tests=2)
    (path / "predictions" / "task00.csv").write_text("image,true,pred\na,0,7\n")
    done = command(tmp_path)
    assert done.returncode == 2 and "task00.csv is damaged" in done.stderr
