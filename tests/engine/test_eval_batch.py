"""How many images are evaluated at a time."""

from dataclasses import replace

import pytest
import torch
from helpers.cli import command
from helpers.images import make_images
from helpers.tiny import result_files, settings

from data_lt.errors import UserError
from pilot_tal.config.grid import study_config
from pilot_tal.engine.hardware import GPU_EVAL_BATCH
from pilot_tal.engine.jobs import Jobs
from pilot_tal.engine.trainer import Trainer
from pilot_tal.learners import LEARNERS
from pilot_tal.record.run_dir import find_runs, load_run


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"), 4)


def run_of(images, method, *more):
    plan = study_config(method, "folder_lt", settings(images, "runs", "seeds=1", "batch_size=4", *more))
    jobs = Jobs(plan)
    return jobs.trainer(jobs.all[0])


def on_cuda(run: Trainer) -> Trainer:
    """The same run, were there a GPU: nothing of it is computed."""
    return Trainer(run.config, run.hardware, replace(run.shared, device=torch.device("cuda")), run.record, run.path)


def test_eval_batch_size_does_not_change_the_run_name(images, tmp_path):
    """The same directory with the same labels, whose record tells it; training does not hear of it."""
    runs = {}
    for size in ("auto", 7):
        given = settings(images, tmp_path / str(size), "batch_size=4", f"eval_batch_size={size}")
        status, printed = command("run", "mos", "folder_lt", *given, "--quick")
        assert status == 0, printed
        runs[size] = load_run(find_runs([tmp_path / str(size)])[0])
        assert runs[size].record.environment[-1]["eval_batch_size"] == (4 if size == "auto" else size)
        assert runs[size].path.name == runs["auto"].path.name
        assert result_files(runs[size].path)["result.json"] == result_files(runs["auto"].path)["result.json"]
        assert runs[size].step_log() == runs["auto"].step_log()


def test_size_that_would_change_predictions_is_refused(images):
    for method in ("l2p", "dualprompt"):
        with pytest.raises(UserError, match=f"eval_batch_size=7: what {method} predicts with fidelity=pilot depends"):
            run_of(images, method, "eval_batch_size=7")
        assert run_of(images, method, "eval_batch_size=4").eval_batch_size == 4
        assert run_of(images, method).eval_batch_size == 4
        assert run_of(images, method, "eval_batch_size=7", "fidelity=fixed").eval_batch_size == 7


def test_images_are_scored_so_many_at_a_time(images, monkeypatch):
    run = run_of(images, "simplecil", "eval_batch_size=6")
    seen = []
    scores = LEARNERS["simplecil"].scores

    def spy(self, x, ids=None):
        seen.append(ids.tolist())
        return scores(self, x, ids)

    monkeypatch.setattr(LEARNERS["simplecil"], "scores", spy)
    learner = run.build()
    learner.begin_task(run.tasks[0])
    learner.end_task(lambda: ((x, y) for x, y, _ in run.train_batches(run.tasks[0]).in_order()))
    run.evaluate(learner, run.tasks[1])
    assert run.train_batches(run.tasks[0]).batch_size == 4 and seen == [[0, 1, 2, 3, 4, 5], [6, 7]]


def test_gpu_out_of_memory_is_one_sentence(images, tmp_path, monkeypatch):
    def too_much(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(LEARNERS["mos"], "scores", too_much)
    status, printed = command("run", "mos", "folder_lt", *settings(images, tmp_path), "--quick")
    assert status == 2 and "the GPU is out of memory; lower jobs_per_gpu, batch_size or eval_batch_size" in printed


def test_eval_batch_on_a_gpu_is_larger_unless_it_matters(images):
    run = run_of(images, "mos")
    assert run.eval_batch_size == 4 and on_cuda(run).eval_batch_size == GPU_EVAL_BATCH
    assert on_cuda(run_of(images, "mos", "eval_batch_size=7")).eval_batch_size == 7
    assert on_cuda(run_of(images, "l2p")).eval_batch_size == 4


@pytest.mark.parametrize("cuda", [True, False])
def test_gpu_gets_its_images_from_pinned_memory(cuda, images, monkeypatch):
    run = run_of(images, "mos")
    run = on_cuda(run) if cuda else run
    asked = []
    loader = torch.utils.data.DataLoader

    def spy(*args, pin_memory, **options):
        asked.append(pin_memory)
        return loader(*args, **options)

    monkeypatch.setattr(torch.utils.data, "DataLoader", spy)
    for batches in (run.train_batches(run.tasks[0]).epochs(1, 0)(0), run.test_batches(run.tasks[0]).in_order()):
        next(iter(batches))
    assert asked == [cuda, cuda]


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "4,8", "65537"])
def test_bad_eval_batch_sizes_raise(value, images, tmp_path):
    status, printed = command("run", "mos", "folder_lt", *settings(images, tmp_path, f"eval_batch_size={value}"))
    assert status == 2 and "eval_batch_size must be" in printed and not list(tmp_path.iterdir())
