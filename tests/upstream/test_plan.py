"""From a command line to jobs: settings find their places, and wrong ones are one sentence."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from upstream_helpers import DATA_SETTINGS

from data_lt.errors import UserError
from pilot_tal.upstream.job import read_job
from pilot_tal.upstream.plan import make_jobs
from pilot_tal.upstream.sites import LAMDA_PILOT


def plan(repo, images, *settings, config="exps/l2p.json", losses=("tal",), **options):
    options = {"dataset": "folder_lt", "data_root": images, **options}
    return make_jobs(repo, config, (*DATA_SETTINGS, *settings), losses=losses, **options)


def test_one_job_per_seed_and_loss(pilot, images):
    jobs = plan(pilot, images, "init_cls=2", "tal.lam=0.9", losses=("ce", "tal"), seeds=(1, 2), device="cpu")
    assert [(job.seed, job.loss) for job in jobs] == [(1, "ce"), (1, "tal"), (2, "ce"), (2, "tal")]
    assert len({job.run_dir for job in jobs}) == 4
    assert all(job.args["init_cls"] == 2 and job.device == [-1] for job in jobs)
    assert [job.record["loss"]["options"].get("lam") for job in jobs[:2]] == [None, 0.9]
    shared = [{k: v for k, v in job.record.items() if k != "loss"} for job in jobs[:2]]
    changed = [record.pop("changed") for record in shared]
    assert shared[0] == shared[1]  # so that the report compares the two
    data = {"n_max": [6, None], "test_per_class": [3, 10]}  # n_min is the dataset's own
    assert changed == [{"init_cls": [2, 4], **data}, {"init_cls": [2, 4], **data, "lam": [0.9, 0.995]}]


def test_settings_that_change_the_result_change_the_run_name(pilot, images):
    """And nothing else does: where it runs, and with how many processes, is left out."""
    changes = ("init_cls=2", "increment=1", "tuned_epoch=7", "tal.lam=0.9", "data.law=exponential", "shuffle=false")
    names = [Path(plan(pilot, images, *settings)[0].run_dir).name for settings in ((), *((one,) for one in changes))]
    assert len(set(names)) == len(names)
    assert Path(plan(pilot, images, device="cpu", workers=3, output=Path("x"))[0].run_dir).name == names[0]
    assert Path(plan(pilot, images, weights="random")[0].run_dir).name not in names


def test_weights_are_random_where_the_config_wants_no_pretraining(pilot, images, tmp_path):
    """Most learners of LAMDA-PILOT download weights even if the config forbids it."""
    config = json.loads((pilot / "exps/l2p.json").read_text())
    (tmp_path / "mine.json").write_text(json.dumps(config | {"pretrained": False}))
    job = plan(pilot, images, config=str(tmp_path / "mine.json"))[0]
    assert job.weights == job.record["backbone"]["weights"] == "random"
    assert plan(pilot, images)[0].weights is None


def test_names_the_checkout_gets_to_hear(pilot, pycil, images):
    data = plan(pilot, images)[0].data
    assert (data.alias, data.template) == ("folder_lt", "cub")
    data = plan(pycil, images, config="exps/replay.json")[0].data
    assert (data.alias, data.template) == ("folder_lt-cifar100", "cifar100")
    assert all((Path(data.root) / path).is_file() for path, _ in data.train + data.test)
    assert not {path for path, _ in data.train} & {path for path, _ in data.test}


def test_numbers_in_the_code_are_set_apart(pycil, images):
    job = plan(pycil, images, "epochs=3", "batch_size=4", config="exps/replay.json")[0]
    assert job.constants == {"epochs": 3}
    assert job.args["batch_size"] == 4


def test_job_file_round_trip(pilot, images, tmp_path):
    job = plan(pilot, images, output=tmp_path)[0]
    job.write()
    again = read_job(job.file)
    assert json.dumps(again.record) == json.dumps(job.record)
    assert json.dumps(again.data.train) == json.dumps(job.data.train)


WRONG = {
    "config": (
        {"config": "exps/l2pp.json"},
        (),
        r"unknown config of the checkout .* did you mean 'exps/l2p\.json'",
    ),
    "loss": ({"losses": ("tall",)}, (), "unknown loss 'tall': did you mean 'tal'"),
    "loss option": ({}, ("tal.lamda=1",), r"unknown setting 'tal\.lamda': did you mean 'tal\.lam'"),
    "loss value": ({}, ("tal.lam=2",), r"tal\.lam must be a number above 0 below 1"),
    "setting": ({}, ("tuned_epochs=3",), "did you mean 'tuned_epoch'"),
    "text for a number": ({}, ("tuned_epoch=x",), "tuned_epoch must be a number, got 'x'"),
    "no number": ({}, ("tuned_epoch=NaN",), "tuned_epoch must be a number, got 'NaN'"),
    "infinity": ({}, ("tuned_epoch=1e999",), "tuned_epoch must be a number, got '1e999'"),
    "seed": ({"seeds": (-1,)}, (), "a seed must be a whole number from 0 to 4294967295, got -1"),
    "section": ({}, ("ce.x=3",), r"unknown section in 'ce\.x'"),
    "no value": ({}, ("tuned_epoch",), "settings are written key=value, got 'tuned_epoch'"),
    "own option": ({}, ("seed=3",), "seed has an option of its own"),
    "classes": ({}, ("init_cls=9",), "init_cls must be at most 6 classes, got 9"),
    "no classes": ({}, ("increment=0",), "increment must be a whole number of at least 1, got 0"),
    "dataset": ({"dataset": "folder"}, (), "unknown dataset 'folder'"),
    "data": ({}, ("data.nmax=3",), r"unknown setting 'data\.nmax': did you mean 'data\.n_max'"),
    "no dataset": ({"dataset": None}, (), r"data\.n_max needs one of our datasets"),
    "device": ({"device": "gpu"}, (), "device must be cpu or GPU numbers such as 0 or 0,1, got 'gpu'"),
    "classifier": ({"classifier": "nm"}, (), "unknown classifier 'nm'"),
    "weights": ({"weights": "nowhere.pth"}, (), "weights file nowhere.pth does not exist"),
    "vit": ({"weights": "random"}, ("vit.deep=2",), r"unknown setting 'vit\.deep': did you mean"),
    "vit value": (
        {"weights": "random"},
        ("vit.depth=0",),
        r"vit\.depth must be a whole number from 1 to 100, or null, got 0",
    ),
    "vit weights": ({}, ("vit.depth=2",), "needs weights of that shape"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_raises_user_error(name, pilot, images):
    options, settings, message = WRONG[name]
    with pytest.raises(UserError, match=message) as error:
        plan(pilot, images, *settings, **options)
    assert "\n" not in str(error.value)


def test_class_with_one_image_is_refused_by_covariance_learners(pilot, images, monkeypatch):
    learner = replace(LAMDA_PILOT.learners["l2p"], title="SLCA", least=3)
    monkeypatch.setitem(LAMDA_PILOT.learners, "l2p", learner)
    with pytest.raises(UserError, match=r"SLCA takes a covariance of every class, .* set data\.n_min=3"):
        plan(pilot, images)
    monkeypatch.setitem(LAMDA_PILOT.learners, "l2p", replace(learner, least=2))
    assert plan(pilot, images)


def test_pycil_has_no_vit(pycil, images, tmp_path):
    (tmp_path / "vit.pth").touch()
    for settings, weights in ((("vit.depth=2",), "random"), ((), str(tmp_path / "vit.pth"))):
        with pytest.raises(UserError, match="PyCIL's"):
            plan(pycil, images, *settings, config="exps/replay.json", weights=weights)
    with pytest.raises(UserError, match="epochs must be a number, got 'ten'"):
        plan(pycil, images, "epochs=ten", config="exps/replay.json")


def test_config_without_a_seed_or_a_name_is_refused(pilot, images, tmp_path):
    config = json.loads((pilot / "exps/l2p.json").read_text())
    for change, message in (({"seed": []}, "has no seed; give one with --seed"), ({"model_name": 3}, "is no name")):
        (tmp_path / "mine.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=message):
            plan(pilot, images, config=str(tmp_path / "mine.json"), seeds=())


def test_file_that_is_not_a_config_is_refused(pilot, images, tmp_path):
    (tmp_path / "mine.json").write_text('{"model_name": "l2p"}')
    with pytest.raises(UserError, match="is not a config of the checkout: dataset, init_cls"):
        plan(pilot, images, config=str(tmp_path / "mine.json"))
