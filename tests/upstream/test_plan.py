"""From a command line to jobs: settings find their places, and wrong ones are one sentence."""

import json
from pathlib import Path

import pytest
from upstream_world import DATA_SETTINGS

from pilot_tal.errors import PilotTalError
from pilot_tal.upstream.job import read_job
from pilot_tal.upstream.plan import Request, make_jobs


def plan(repo, images, *settings, config="exps/l2p.json", losses=("tal",), **options):
    options = {"dataset": "folder_lt", "data_root": images, **options}
    return make_jobs(Request(repo, config, losses, overrides=(*DATA_SETTINGS, *settings), **options))


def test_a_job_for_each_seed_and_loss(pilot, images):
    jobs = plan(pilot, images, "init_cls=2", "tal.lam=0.9", losses=("ce", "tal"), seeds=(1, 2), device="cpu")
    assert [(job.seed, job.loss) for job in jobs] == [(1, "ce"), (1, "tal"), (2, "ce"), (2, "tal")]
    assert len({job.run_dir for job in jobs}) == 4
    assert all(job.args["init_cls"] == 2 and job.device == [-1] for job in jobs)
    assert [job.loss_options for job in jobs[:2]] == [{}, {"lam": 0.9}]
    shared = [{k: v for k, v in job.config.items() if k not in ("ce", "tal", "loss")} for job in jobs[:2]]
    assert shared[0] == shared[1]  # so that the report compares the two


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


def test_a_job_is_read_back_as_it_was_written(pilot, images, tmp_path):
    job = plan(pilot, images, output=tmp_path)[0]
    job.write()
    again = read_job(job.file)
    assert json.dumps(again.config) == json.dumps(job.config)
    assert again.data.absolute("train") == job.data.absolute("train")
    (tmp_path / "other.json").write_text('{"repo": "x"}')
    with pytest.raises(PilotTalError, match="is not a job"):
        read_job(tmp_path / "other.json")


WRONG = {
    "config": (
        {"config": "exps/l2pp.json"},
        (),
        r"unknown config of the checkout .* did you mean 'exps/l2p\.json'",
    ),
    "loss": ({"losses": ("tall",)}, (), "unknown loss 'tall': did you mean 'tal'"),
    "loss option": ({}, ("tal.lamda=1",), "unknown option of loss 'tal' 'lamda'"),
    "loss value": ({}, ("tal.lam=2",), "must be a number between 0 and 1"),
    "setting": ({}, ("tuned_epochs=3",), "did you mean 'tuned_epoch'"),
    "section": ({}, ("ce.x=3",), "unknown section in 'ce.x=3'"),
    "no value": ({}, ("tuned_epoch",), "a setting must be key=value, got 'tuned_epoch'"),
    "own option": ({}, ("seed=3",), "seed has an option of its own"),
    "classes": ({}, ("init_cls=9",), "init_cls must be at most 6 classes, got 9"),
    "no classes": ({}, ("increment=0",), "increment must be a whole number of at least 1, got 0"),
    "dataset": ({"dataset": "folder"}, (), "unknown dataset 'folder'"),
    "data": ({}, ("data.nmax=3",), r"unknown setting of the data 'data\.nmax': did you mean 'data\.n_max'"),
    "no dataset": ({"dataset": None}, (), r"data\.n_max needs one of our datasets"),
    "device": ({"device": "gpu"}, (), "device must be cpu or GPU numbers such as 0 or 0,1, got 'gpu'"),
    "classifier": ({"classifier": "nm"}, (), "unknown classifier 'nm'"),
    "weights": ({"weights": "nowhere.pth"}, (), "weights must be 'random' or a .* file that exists, got nowhere"),
    "vit": ({"weights": "random"}, ("vit.deep=2",), r"unknown setting of the ViT 'vit\.deep': did you mean"),
    "vit value": ({"weights": "random"}, ("vit.depth=0",), r"vit\.depth must be a positive number, got 0"),
    "vit weights": ({}, ("vit.depth=2",), "needs weights of that shape"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_sentence(name, pilot, images):
    options, settings, message = WRONG[name]
    with pytest.raises(PilotTalError, match=message) as error:
        plan(pilot, images, *settings, **options)
    assert "\n" not in str(error.value)


def test_pycil_has_no_vit(pycil, images, tmp_path):
    (tmp_path / "vit.pth").touch()
    for settings, weights in ((("vit.depth=2",), "random"), ((), str(tmp_path / "vit.pth"))):
        with pytest.raises(PilotTalError, match="PyCIL's"):
            plan(pycil, images, *settings, config="exps/replay.json", weights=weights)
    with pytest.raises(PilotTalError, match="epochs must be a number, got 'ten'"):
        plan(pycil, images, "epochs=ten", config="exps/replay.json")


def test_a_config_that_is_none_is_refused(pilot, images, tmp_path):
    (tmp_path / "mine.json").write_text('{"model_name": "l2p"}')
    with pytest.raises(PilotTalError, match="is not a config of the checkout: dataset, init_cls"):
        plan(pilot, images, config=str(tmp_path / "mine.json"))
