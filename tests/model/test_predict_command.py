"""`pilot-tal predict` on real files: the table, CSV, and what is skipped."""

import csv
import os
import shutil
from pathlib import Path

import pytest
from helpers.cli import command
from model_helpers import photo
from safetensors.torch import load_file, save_file

from data_lt.files import checksum
from pilot_tal import load_model
from pilot_tal.model.model import Prediction
from pilot_tal.model.predictions import csv_text, prediction_table
from pilot_tal.record.run_dir import read_sealed, write_sealed


@pytest.fixture
def run(workspace):
    return workspace.run("lae")


def test_table_names_every_image_with_its_best_classes(run, workspace, tmp_path):
    files = [photo(tmp_path / f"{number}.png", number) for number in range(3)]
    status, printed = command("predict", run, tmp_path, "--top", 2)
    assert status == 0, printed
    lines = printed.splitlines()
    for line, file, result in zip(lines, files, load_model(run).predict(files, top=2), strict=True):
        assert line.startswith(str(file))
        assert line.split(str(file))[1].split("  ")[1:] == [f"{score:.3f} {name}" for name, score in result.top]


def test_files_folders_and_patterns_each_once_in_their_order(run, tmp_path):
    names = ["b.png", "a.jpg", "deep/c.PNG", "deep/.hidden.png", "deep/notes.txt", "odd.data"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(photo(tmp_path / "source" / "p.png", number), tmp_path / name)
    shutil.rmtree(tmp_path / "source")
    out = tmp_path / "out.csv"
    wanted = [tmp_path / "odd.data", tmp_path / "deep" / "c.PNG", tmp_path / "a.jpg", tmp_path / "b.png"]
    status, printed = command("predict", run, wanted[0], tmp_path / "deep", tmp_path / "*.???", tmp_path, "-o", out)
    assert status == 0, printed
    with out.open(encoding="utf-8", newline="") as file:
        assert [row["image"] for row in csv.DictReader(file)] == [str(path) for path in wanted]


def test_home_directory_is_expanded(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    image = photo(tmp_path / "p.png")
    assert command("predict", run, image, "-o", "~/out.csv")[0] == 0
    assert (tmp_path / "out.csv").is_file() and not (tmp_path / "~").exists()
    status, printed = command("predict", run, image, "--weights", "~/no.safetensors")
    assert status == 2 and "cannot read weights" in printed and str(tmp_path / "no.safetensors") in printed


def test_csv_escapes_formulas():
    top = (("=cmd()", 0.6), ("@SUM(1)", 0.3), ("plain", 0.1))
    table = prediction_table([Path("-x.png")], [Prediction(*top[0], top)])
    (row,) = csv.DictReader(csv_text(table).splitlines())
    assert [row[key] for key in ("image", "label", "label_2", "label_3")] == ["'-x.png", "'=cmd()", "'@SUM(1)", "plain"]


def test_csv_contains_the_predictions(run, workspace, tmp_path):
    files = [photo(tmp_path / "in" / f"{number}.png", number) for number in range(3)]
    results = load_model(run).predict(files, top=3)
    status, printed = command("predict", run, tmp_path / "in", "--top", 3, "-o", tmp_path / "out.csv")
    assert status == 0 and f"3 images: {tmp_path / 'out.csv'}" in printed, printed
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for file, row, result in zip(files, rows, results, strict=True):
        assert (row["image"], row["label"]) == (str(file), result.label)
        assert [row["label"], row["label_2"], row["label_3"]] == [name for name, _ in result.top]
        scores = [float(row[key]) for key in ("score", "score_2", "score_3")]
        assert scores == pytest.approx([score for _, score in result.top], abs=1e-5)
        assert float(row["score"]) == pytest.approx(result.score, abs=1e-5)


def test_unreadable_images_are_named_skipped_and_counted(run, tmp_path):
    good = [photo(tmp_path / "in" / f"{number}.png", number) for number in (0, 2)]
    (tmp_path / "in" / "1.png").write_bytes(good[0].read_bytes()[:100])
    (tmp_path / "in" / "3.jpg").write_bytes(b"")
    status, printed = command("predict", run, tmp_path / "in", "-o", tmp_path / "out.csv")
    assert status == 1
    assert f"skipped: cannot read the image {tmp_path / 'in' / '1.png'}" in printed
    assert f"skipped: cannot read the image {tmp_path / 'in' / '3.jpg'}: empty file" in printed
    assert "2 of 4 images could not be read and were skipped" in printed
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == [str(file) for file in good]
    assert [row["label"] for row in rows] == [one.label for one in load_model(run).predict(good)]
    status, printed = command("predict", run, tmp_path / "in" / "3.jpg")
    assert status == 1 and "1 of 1 images" in printed


def test_bad_input_raises_user_error_and_writes_nothing(run, tmp_path):
    (tmp_path / "empty").mkdir()
    image = photo(tmp_path / "one.png")
    for arguments, wanted in {
        (run, tmp_path / "empty"): "there are no images in",
        (run, tmp_path / "*.gif"): "as a pattern it matches no file",
        (run, tmp_path / "missing.png"): "does not exist",
        (tmp_path, image): "neither a run directory",
        (tmp_path / "no_model", tmp_path / "missing.png"): "no_model does not exist",
        (run, image, "-o", tmp_path / "out.txt"): "--output must end in .csv",
        (run, image, "--after-task", 9): "has no model after task 9",
        (run, image, "-o", image / "out.csv"): "cannot write",
    }.items():
        status, printed = command("predict", *arguments)
        assert status == 2 and printed.startswith("error: ") and wanted in printed and printed.count("\n") == 1, printed
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty", "one.png"]


def test_note_on_batch_prompts_is_printed_once(workspace, tmp_path):
    status, printed = command("predict", workspace.run("l2p"), photo(tmp_path / "one.png"))
    assert status == 0 and printed.count("scores each image alone") == 1 and printed.startswith("note: L2P")


def test_names_cannot_steer_the_terminal(run, tmp_path):
    photo(tmp_path / "a\x1b[31m\nb.png")
    status, printed = command("predict", run, tmp_path)
    assert status == 0 and "\x1b" not in printed and "a\\x1b[31m\\nb.png" in printed


def test_output_inside_a_run_is_refused(run, tmp_path):
    image, before = photo(tmp_path / "one.png"), (run / "result.json").read_bytes()
    for target in (run / "result.json", run / "predictions" / "new.csv"):
        status, printed = command("predict", run, image, "-o", target)
        assert status == 2 and "give another place" in printed and printed.count("\n") == 1
    assert command("export", run, "-o", run / "model")[0] == 2
    assert (run / "result.json").read_bytes() == before and not (run / "predictions" / "new.csv").exists()


def test_name_that_is_not_utf8_is_written_escaped(run, tmp_path):
    good = photo(tmp_path / "in" / "good.png")
    os.link(good, os.fsencode(tmp_path / "in") + b"/bad\xff.png")
    assert command("predict", run, tmp_path / "in", "-o", tmp_path / "out.csv")[0] == 0
    written = (tmp_path / "out.csv").read_text(encoding="utf-8")
    assert str(good) in written and "bad\\" in written


def test_special_files_and_long_paths_are_one_sentence(run, tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    image = photo(tmp_path / "one.png")
    status, printed = command("predict", run, tmp_path / "pipe.png", image)
    assert status == 1 and "pipe.png: not a regular file" in printed and str(image) in printed
    for weights in (tmp_path / "pipe.png", "/dev/zero"):
        status, printed = command("predict", run, image, "--weights", weights)
        assert status == 2 and "not a regular file" in printed and printed.count("\n") == 1
    status, printed = command("predict", run, "/".join(["d" * 200] * 30))
    assert status == 2 and printed.startswith("error: ") and printed.count("\n") == 1 and len(printed) < 400


def test_non_finite_tensors_are_refused(run, tmp_path):
    broken = shutil.copytree(run, tmp_path / "run")
    file = broken / "checkpoint" / "task01.learner.safetensors"
    tensors = load_file(file)
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    tensors[name].flatten()[0] = float("nan")
    save_file(tensors, file)
    result = read_sealed(broken / "result.json")
    result["files"][f"checkpoint/{file.name}"] = {"bytes": file.stat().st_size, "sha256": checksum(file)}
    write_sealed(broken / "result.json", result)
    status, printed = command("predict", broken, photo(tmp_path / "one.png"))
    assert status == 2 and f"non-finite values in {name}" in printed
