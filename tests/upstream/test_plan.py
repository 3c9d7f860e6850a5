"""From a command line to jobs: settings find their places, and wrong ones are one sentence."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from upstream_helpers import DATA_SETTINGS, make_standin

import pilot_tal._torchvision  # noqa: F401  (before timm)

from timm.models.vision_transformer import VisionTransformer  # isort: skip

from data_lt.errors import UserError
from data_lt.files import read_json
from pilot_tal.upstream.checkout import LEARNERS
from pilot_tal.upstream.driver import Job
from pilot_tal.upstream.plan import make_jobs


def plan(repo, images, *settings, config="exps/l2p.json", losses=("tal",), **options):
    options = {"dataset": "folder_lt", "data_root": images, **options}
    return make_jobs(repo, config, (*DATA_SETTINGS, *settings), losses=losses, **options)


def test_one_job_per_seed_and_loss(pilot, images):
    jobs = plan(pilot, images, "init_cls=2", "tal.lam=0.9", losses=("ce", "tal"), seeds=(1, 2), device="cpu")
    assert [(job.record["seed"], job.record["loss"]["name"]) for job in jobs] == [
        (1, "ce"),
        (1, "tal"),
        (2, "ce"),
        (2, "tal"),
    ]
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


def test_images_are_on_the_disk(pilot, images):
    job = plan(pilot, images)[0]
    assert job.args["dataset"] == "folder_lt"
    assert all((Path(job.data["root"]) / path).is_file() for path, _ in job.data["train"] + job.data["test"])
    assert not {path for path, _ in job.data["train"]} & {path for path, _ in job.data["test"]}


def vit_file(path, width, **shape):
    """Weights of a random ViT."""
    vit = VisionTransformer(embed_dim=width, num_heads=width // 64, num_classes=3, **shape)
    torch.save(vit.state_dict(), path)
    return str(path)


def test_shape_of_the_vit_is_that_of_the_weights(pilot, images, tmp_path):
    base = vit_file(tmp_path / "base.pth", 768, depth=12, mlp_ratio=4, img_size=224, patch_size=16)
    job = plan(pilot, images, weights=base)[0]
    assert job.vit == job.record["engine"]["details"]["vit"] == {} and job.weights == base
    assert job.record["backbone"]["img_size"] is None
    tiny = vit_file(tmp_path / "tiny.pth", 128, depth=3, mlp_ratio=0.5, img_size=24, patch_size=8)
    shape = {"img_size": 24, "patch_size": 8, "embed_dim": 128, "depth": 3, "num_heads": 2, "mlp_ratio": 0.5}
    job = plan(pilot, images, weights=tiny)[0]
    assert job.vit == job.record["engine"]["details"]["vit"] == shape and job.record["backbone"]["img_size"] == 24
    torch.save({"some": torch.ones(1)}, tmp_path / "other.pth")  # the driver says that they do not fit
    assert plan(pilot, images, weights=str(tmp_path / "other.pth"))[0].vit == {}
    with pytest.raises(UserError, match=r"a ViT for 24 pixels needs one of our datasets \(--dataset\)"):
        make_jobs(pilot, "exps/l2p.json", weights=tiny)


def test_job_file_round_trip(pilot, images, tmp_path):
    job = plan(pilot, images, output=tmp_path)[0]
    job.write()
    again = Job(**read_json(job.file))
    assert json.dumps(again.record) == json.dumps(job.record)
    assert again.data == job.data


WRONG = {
    "config": (
        {"config": "exps/l2pp.json"},
        (),
        r"unknown config of the checkout .* did you mean 'exps/l2p\.json'",
    ),
    "loss": ({"losses": ("tall",)}, (), "unknown loss 'tall': did you mean 'tal'"),
    "loss option": ({}, ("tal.lamda=1",), r"unknown setting of .* 'tal\.lamda': did you mean 'tal\.lam'"),
    "loss value": ({}, ("tal.lam=2",), r"tal\.lam must be a number above 0 and below 1"),
    "setting": ({}, ("tuned_epochs=3",), "did you mean 'tuned_epoch'"),
    "text for a number": ({}, ("tuned_epoch=x",), "tuned_epoch must be a number, got 'x'"),
    "no number": ({}, ("tuned_epoch=NaN",), "tuned_epoch must be a number, got 'NaN'"),
    "infinity": ({}, ("tuned_epoch=1e999",), "tuned_epoch must be a number, got '1e999'"),
    "section": ({}, ("ce.x=3",), r"unknown setting of LAMDA-PILOT's l2p 'ce\.x'"),
    "no value": ({}, ("tuned_epoch",), "settings are written key=value, got 'tuned_epoch'"),
    "own option": ({}, ("seed=3",), "seed has an option of its own"),
    "classes": ({}, ("init_cls=9",), "init_cls must be at most 6 classes, got 9"),
    "no classes": ({}, ("increment=0",), "increment must be a whole number of at least 1, got 0"),
    "dataset": ({"dataset": "folder"}, (), "unknown dataset 'folder'"),
    "data": ({}, ("data.nmax=3",), r"unknown setting of .* 'data\.nmax': did you mean 'data\.n_max'"),
    "no dataset": ({"dataset": None}, (), r"data\.n_max needs one of our datasets"),
    "device": ({"device": "gpu"}, (), "device must be cpu or GPU numbers such as 0 or 0,1, got 'gpu'"),
    "weights": ({"weights": "nowhere.pth"}, (), "weights file nowhere.pth does not exist"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_raises_user_error(name, pilot, images):
    options, settings, message = WRONG[name]
    with pytest.raises(UserError, match=message) as error:
        plan(pilot, images, *settings, **options)
    assert "\n" not in str(error.value)


def test_class_with_one_image_is_refused_by_covariance_learners(pilot, images, monkeypatch):
    learner = replace(LEARNERS["l2p"], title="SLCA", least=3)
    monkeypatch.setitem(LEARNERS, "l2p", learner)
    with pytest.raises(UserError, match=r"SLCA takes a covariance of every class, .* set data\.n_min=3"):
        plan(pilot, images)
    monkeypatch.setitem(LEARNERS, "l2p", replace(learner, least=2))
    assert plan(pilot, images)


def test_directory_that_is_no_checkout_is_refused(images, tmp_path):
    with pytest.raises(UserError, match=r"is not a checkout of LAMDA-PILOT: it needs trainer\.py and backbone/"):
        plan(tmp_path, images)
    with pytest.raises(UserError, match="does not exist"):
        plan(tmp_path / "nowhere", images)


def test_misspelt_config_is_named_beside_files_that_are_no_configs(images, tmp_path):
    checkout = make_standin(tmp_path / "checkout")
    for name, text in (("list", "[]"), ("broken", "{"), ("odd", '{"model_name": ["l2p"]}')):
        (checkout / f"exps/{name}.json").write_text(text)
    with pytest.raises(UserError, match=r"unknown config of the checkout .* did you mean 'exps/l2p\.json'"):
        plan(checkout, images, config="exps/l2pp.json")


def test_config_without_a_seed_or_a_name_is_refused(pilot, images, tmp_path):
    config = json.loads((pilot / "exps/l2p.json").read_text())
    for change, message in (
        ({"seed": []}, "has no seed; give one with --seed"),
        ({"model_name": 3}, "unknown learner of LAMDA-PILOT"),
    ):
        (tmp_path / "mine.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=message):
            plan(pilot, images, config=str(tmp_path / "mine.json"), seeds=())


def test_seed_of_a_config_may_be_one_number(pilot, images, tmp_path):
    config = json.loads((pilot / "exps/l2p.json").read_text())
    (tmp_path / "mine.json").write_text(json.dumps(config | {"seed": 7}))
    assert [job.record["seed"] for job in plan(pilot, images, config=str(tmp_path / "mine.json"))] == [7]
    for seed in ("1993", -1, 1.5, [True]):
        (tmp_path / "mine.json").write_text(json.dumps(config | {"seed": seed}))
        with pytest.raises(UserError, match="a seed must be a whole number"):
            plan(pilot, images, config=str(tmp_path / "mine.json"))


def test_file_that_is_not_a_config_is_refused(pilot, images, tmp_path):
    (tmp_path / "mine.json").write_text('{"model_name": "l2p"}')
    with pytest.raises(UserError, match="is not a config of the checkout: dataset, init_cls"):
        plan(pilot, images, config=str(tmp_path / "mine.json"))
