"""Whole runs through the command line: complete results, and nothing done twice."""

import contextlib
import math

import pytest
import torch
from helpers.cli import command
from helpers.images import make_images
from helpers.tiny import result_files, settings

from pilot_tal.learners import FIDELITIES, LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.record.lock import locked
from pilot_tal.record.run_dir import find_runs, load_run

CLASSES = 6


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images") / "my photos", CLASSES)


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("method", LEARNERS)
def test_every_method_and_fidelity_gives_complete_results(method, fidelity, images, tmp_path):
    wanted = settings(images, tmp_path, "seeds=1993", f"fidelity={fidelity}")
    status, printed = command("compare", method, "folder_lt", *wanted, "--quick")
    assert status == 0, printed
    (page,) = (tmp_path / "report").glob(f"*-{method}-*/index.html")
    assert f"report: {page}" in printed
    runs = [load_run(path) for path in find_runs([tmp_path])]
    trains = any(run.record.loss.name != "none" for run in runs)
    assert sorted(run.record.loss.name for run in runs) == (["ce", "tal", "tal_auto"] if trains else ["none"])
    for run in runs:
        stream = run.record.stream
        assert run.finished and stream.task_sizes == (3, 3)
        assert stream.class_order == runs[0].record.stream.class_order
        assert sum(stream.train_counts) > CLASSES and run.record.method.fidelity == fidelity
        assert [true.tolist() for true, _ in run.labels] == [
            [0, 0, 1, 1, 2, 2],
            [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5],
        ]
        assert len(run.record.backbone.checksum) == 64 and run.record.data.checksum
        assert (run.path / "log.txt").read_text().count("done") == 2
        if trains:
            assert {line["task"] for line in run.step_log()} >= {0}
            assert bool(run.state_log()) == run.record.loss.name.startswith("tal")


def test_statistics_have_no_tf32_where_evaluation_has_none(images, tmp_path, monkeypatch):
    """On a GPU, prototypes in TF32 would be compared with features in fp32."""
    inside, seen = [], []

    @contextlib.contextmanager
    def spy(device, precision):
        inside.append(precision)
        yield
        inside.pop()

    learner = LEARNERS["simplecil"]
    end_task = learner.end_task
    monkeypatch.setattr("pilot_tal.engine.trainer.tensor_cores", spy)
    monkeypatch.setattr(learner, "end_task", lambda self, images: (seen.append([*inside]), end_task(self, images)))
    status, printed = command("run", "simplecil", "folder_lt", *settings(images, tmp_path, "seed=1"), "--quick")
    assert status == 0 and seen == [["fp32"], ["fp32"]], printed


def test_every_loss_trains_otherwise_than_the_others(images, tmp_path):
    """On the same seed all begin with the same logits; what they make of them tells them apart."""
    wanted = settings(images, tmp_path, f"losses={','.join(LOSSES)}", "seeds=1", "epochs=3", "batch_size=4")
    status, printed = command("compare", "lae", "folder_lt", *wanted)
    assert status == 0, printed
    runs = [load_run(path) for path in find_runs([tmp_path])]
    assert {run.record.loss.name for run in runs} == set(LOSSES)
    losses = {run.record.loss.name: tuple(line["loss"] for line in run.step_log()) for run in runs}
    twins = {("balanced_softmax", "logit_adjustment"), ("ce", "tal_auto")}  # equal by definition, or at first
    for name, values in losses.items():
        for other, others in losses.items():
            if name < other and (name, other) not in twins:
                assert values != others, (name, other)


def test_finished_run_is_not_run_again(images, tmp_path):
    wanted = settings(images, tmp_path, "loss=tal")
    assert command("run", "l2p", "folder_lt", *wanted, "--quick")[0] == 0
    (run,) = find_runs([tmp_path])
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    status, printed = command("run", "l2p", "folder_lt", *wanted, "--quick")
    assert status == 0 and "1 of 1 runs are done already" in printed
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert not list(run.glob(".lock*"))


def test_another_comparison_gets_another_report(images, tmp_path):
    for losses in ("ce,tal", "ce,focal"):
        wanted = settings(images, tmp_path, "seeds=1993", f"losses={losses}")
        assert command("compare", "lae", "folder_lt", *wanted, "--quick")[0] == 0
    assert len(list((tmp_path / "report").glob("*-lae-*/index.html"))) == 2


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("lae", "adapt_blocks=[12]"),
        ("lae", "adapt_blocks=[0,99]"),
        ("lae", "adapt_blocks=[]"),
        ("dualprompt", "g_prompt_layer_idx=[0,99]"),
    ],
)
def test_blocks_that_the_vit_does_not_have_are_refused(method, setting, images, tmp_path):
    status, printed = command("run", method, "folder_lt", *settings(images, tmp_path, setting, "loss=ce"), "--quick")
    assert status == 2 and " only blocks of the ViT, which are 0 … 11, got " in printed


def test_non_finite_training_loss_raises(images, tmp_path):
    wanted = settings(images, tmp_path, "init_lr=1000", "loss=ce", "min_lr=0")
    status, printed = command("run", "ease", "folder_lt", *wanted, "--quick")
    assert status == 2 and "became NaN or infinite" in printed and "lower init_lr" in printed
    assert "became NaN or infinite" in next(tmp_path.glob("*/error.txt")).read_text()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_tensor_after_the_last_step_raises(value, images, tmp_path, monkeypatch):
    """Every loss was a number, and the learner is none: its first choice would always be class 0."""
    from pilot_tal.engine import trainer

    def breaking(learner, *arguments, **options):
        train(learner, *arguments, **options)
        with torch.no_grad():
            next(iter(learner.named_tensors().values())).view(-1)[0] = value

    train = trainer.train_task
    monkeypatch.setattr(trainer, "train_task", breaking)
    status, printed = command("run", "l2p", "folder_lt", *settings(images, tmp_path, "loss=ce"), "--quick")
    assert status == 2 and "became NaN or infinite in task 1; lower init_lr" in printed


def test_non_finite_scores_raise(images, tmp_path, monkeypatch):
    scores = LEARNERS["l2p"].scores
    monkeypatch.setattr(LEARNERS["l2p"], "scores", lambda *arguments: scores(*arguments) * float("nan"))
    status, printed = command("run", "l2p", "folder_lt", *settings(images, tmp_path, "loss=ce"), "--quick")
    assert status == 2 and "the scores of the classes became NaN or infinite; lower init_lr" in printed


def test_bytes_depend_on_the_seed_and_not_on_the_folder(images, tmp_path):
    for place, seed in (("a", 5), ("b", 5), ("c", 6)):
        wanted = settings(images, tmp_path / place, f"seed={seed}", "batch_size=4")
        assert command("run", "mos", "folder_lt", *wanted, "--quick")[0] == 0
    (one,), (same,), (other,) = (find_runs([tmp_path / place]) for place in "abc")
    assert one.name == same.name != other.name
    assert result_files(one) == result_files(same)
    assert result_files(one).keys() == result_files(other).keys()
    assert all(result_files(one)[name] != content for name, content in result_files(other).items())


@pytest.mark.parametrize(
    "sizes", [["tasks=1"], ["tasks=6"], ["init_cls=4", "increment=1"], ["tasks=4"]], ids=lambda s: "-".join(s)
)
def test_one_task_one_class_per_task_and_unequal_tasks(sizes, images, tmp_path):
    expected = {"tasks=1": (6,), "tasks=6": (1,) * 6, "init_cls=4": (4, 1, 1), "tasks=4": (2, 2, 1, 1)}[sizes[0]]
    for method in ("l2p", "mos"):
        wanted = settings(images, tmp_path / method, "batch_size=1", *sizes)
        status, printed = command("run", method, "folder_lt", *wanted, "--quick")
        assert status == 0, printed
        run = load_run(find_runs([tmp_path / method])[0])
        assert run.record.stream.task_sizes == expected
        assert [len(true) for true, _ in run.labels] == [2 * sum(expected[: t + 1]) for t in range(len(expected))]


def test_other_images_are_another_run(images, tmp_path):
    other = make_images(tmp_path / "other photos", images=12)
    for root in (images, other):
        assert command("run", "lae", "folder_lt", *settings(root, tmp_path / "runs"), "--quick")[0] == 0
    assert len(find_runs([tmp_path / "runs"])) == 2


def test_explicit_default_is_the_same_run(images, tmp_path):
    for more in ([], ["law=profile", "shape=6", "init_lr=0.0028125", "precision=fp32", "split_seed=1993"]):
        assert command("run", "lae", "folder_lt", *settings(images, tmp_path, *more), "--quick")[0] == 0
    assert len(find_runs([tmp_path])) == 1


def test_dry_run_prints_the_plan_and_writes_nothing(images, tmp_path):
    wanted = settings(images, tmp_path / "runs", "seeds=1,2")
    status, printed = command("compare", "l2p", "folder_lt", *wanted, "--dry-run")
    assert status == 0, printed
    assert "6 of 6 runs to do, " in printed
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("method", "steps"), [("simplecil", 0), ("ranpac", 2), ("ease", 4)])
def test_dry_run_counts_the_steps_that_are_trained(method, steps, images, tmp_path):
    """SimpleCIL trains nothing, RanPAC its first task alone; two steps of an epoch with `--quick`."""
    wanted = settings(images, tmp_path / "runs", *["loss=ce"] * (method != "simplecil"))
    status, printed = command("compare", method, "folder_lt", *wanted, "--dry-run", "--quick")
    assert status == 0, printed
    row = next(line for line in printed.splitlines() if f"{method} my_photos" in line)
    assert [cell.strip() for cell in row.split("│")][3:6] == ["2", str(steps), "0/2"]


@pytest.mark.parametrize(
    ("capabilities", "precision", "hint"),
    [({"avx512_bf16": True}, "fp32", True), ({"amx_bf16": True}, "bf16", False), ({"avx512": True}, "fp32", False)],
)
def test_dry_run_hints_at_bf16_where_the_hardware_has_it(capabilities, precision, hint, images, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: capabilities, raising=False)
    wanted = settings(images, tmp_path / "runs", f"precision={precision}", "device=cpu")
    status, printed = command("run", "simplecil", "folder_lt", *wanted, "--dry-run", "--quick")
    assert status == 0, printed
    assert ("precision=bf16 is faster" in printed) == hint


def test_second_process_on_a_run_directory_raises(images, tmp_path):
    wanted = settings(images, tmp_path, "loss=ce")
    assert command("run", "l2p", "folder_lt", *wanted, "--quick")[0] == 0
    (run,) = find_runs([tmp_path])
    (run / "result.json").unlink()
    with locked(run):
        status, printed = command("run", "l2p", "folder_lt", *wanted, "--quick")
    assert status == 2 and f"another process is working in {run}" in printed


def test_non_finite_loss_stops_the_run_and_the_next_start_resumes(images, tmp_path, monkeypatch):
    wanted = ("run", "lae", "folder_lt", *settings(images, tmp_path, "batch_size=2", "loss=ce"), "--quick")
    calls = []

    def spoiled(self, logits, targets, values):
        calls.append(1)
        return torch.nn.functional.cross_entropy(logits, targets) * (math.inf if len(calls) == 7 else 1)

    with monkeypatch.context() as patch:
        patch.setattr(LOSSES["ce"], "batch_loss", spoiled)
        status, printed = command(*wanted)
    said = "the loss became NaN or infinite in task 2, epoch 2, step 2; lower init_lr, or use precision=fp32"
    (path,) = find_runs([tmp_path])
    assert status == 2 and f"error: {said}" in printed
    assert (path / "error.txt").read_text() == f"{said}\n"
    run = load_run(path)
    assert not run.finished and run.tasks_done == 1
    assert command(*wanted)[0] == 0 and load_run(path).finished
    assert not (path / "error.txt").exists()


def test_half_precision_computes_in_it_or_is_refused(images, tmp_path):
    losses = {}
    for precision in ("fp32", "bf16"):
        wanted = settings(images, tmp_path / precision, f"precision={precision}", "loss=ce")
        assert command("run", "l2p", "folder_lt", *wanted, "--quick")[0] == 0
        losses[precision] = load_run(find_runs([tmp_path / precision])[0]).step_log()[0]["loss"]
    assert losses["fp32"] != losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)
    status, printed = command("run", "l2p", "folder_lt", *settings(images, tmp_path, "precision=tf32"), "--quick")
    assert status == 2 and "precision=tf32 needs a CUDA device" in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compare", "l3p", "demo_lt"], "unknown method 'l3p'"),
        (["compare", "l2p", "cub_lt", "data_root=/nowhere"], "build cub_lt --download --data-root /nowhere"),
        (["run", "l2p", "folder_lt", "seeds=1,2"], "run takes one value of each setting, got 2 runs"),
        (["run", "l2p", "folder_lt", "device=cuda:0", "data_root={images}", "n_max=6", "test_per_class=2"], "no cuda"),
        (
            ["run", "l2p", "folder_lt", "order=no.txt", "data_root={images}", "n_max=6", "test_per_class=2"],
            "order must be",
        ),
    ],
)
def test_bad_input_raises_user_error_and_a_status(arguments, sentence, images, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    status, printed = command(*(text.format(images=images) for text in arguments))
    assert status == 2 and sentence in printed and "Traceback" not in printed
