"""key=value settings: what they mean and what is refused at once."""

import pytest
from tiny import command

from pilot_tal.config import all_keys, make_plan
from pilot_tal.errors import PilotTalError
from pilot_tal.learners import METHODS
from pilot_tal.losses import LOSSES


def test_defaults_are_the_papers():
    plan = make_plan("l2p", "cub_lt")
    assert [(run.loss, run.seed) for run in plan.runs] == [
        (loss, seed) for seed in (1993, 1994, 1995) for loss in ("ce", "tal")
    ]
    run = plan.runs[1]
    assert (run.tasks, run.fidelity, run.settings["tuned_epoch"]) == (5, "pilot", 20)
    assert run.loss_options["lam"] == 0.995 and run.loss_options["r"] == 1.0
    assert run.backbone == "vit_base_patch16_224.augreg_in21k_ft_in1k"


def test_dataset_and_method_decide_what_differs():
    assert make_plan("l2p", "cub_lt").runs[0].settings["batch_size"] == 16
    assert make_plan("l2p", "imagenetr_lt").runs[0].settings["batch_size"] == 32
    assert make_plan("coda_prompt", "imagenetr_lt").runs[0].transform == "coda"
    assert make_plan("coda_prompt", "cub_lt").runs[0].transform == "pilot"
    demo = make_plan("lae", "demo_lt").runs[0]
    assert (demo.backbone, demo.settings["tuned_epoch"]) == ("demo_vit", 12)
    assert make_plan("lae", "demo_lt", ["epochs=3"]).runs[0].settings["tuned_epoch"] == 3
    assert make_plan("lae", "demo_lt", quick=True).runs[0].settings["tuned_epoch"] == 2


def test_everything_can_be_overridden():
    items = "tasks=10 seeds=7 losses=ce,tal,balanced_softmax tal.lam=0.99 fidelity=fixed epochs=2 init_lr=0.5"
    items += " data_root=/images weights=random device=cpu output=out workers=3 cache=off n_max=9"
    plan = make_plan("mos", "cub_lt", items.split())
    assert [run.loss for run in plan.runs] == ["ce", "tal", "balanced_softmax"]
    run = plan.runs[1]
    assert (run.seed, run.tasks, run.fidelity, run.loss_options["lam"]) == (7, 10, "fixed", 0.99)
    assert (run.settings["tuned_epoch"], run.settings["init_lr"], run.data.n_max) == (2, 0.5, 9)
    small = make_plan("l2p", "cub_lt", ["init_lr=1e-3", "tal.eps=1e-6", "init_milestones=[3,5]"]).runs[1]
    assert (small.settings["init_lr"], small.loss_options["eps"]) == (1e-3, 1e-6)
    assert small.settings["init_milestones"] == [3, 5]
    assert (plan.machine.data_root, plan.machine.output, plan.machine.workers) == ("/images", "out", 3)


def test_the_data_root_comes_from_the_command_then_the_environment_then_data(monkeypatch):
    monkeypatch.delenv("PILOT_TAL_DATA", raising=False)
    assert make_plan("l2p", "cub_lt").machine.data_root == "data"
    monkeypatch.setenv("PILOT_TAL_DATA", "/from/environment")
    assert make_plan("l2p", "cub_lt").machine.data_root == "/from/environment"
    assert make_plan("l2p", "cub_lt", ["data_root=/given"]).machine.data_root == "/given"


@pytest.mark.parametrize(
    ("method", "dataset", "item", "sentence"),
    [
        ("l2pp", "cub_lt", "tasks=5", "unknown method 'l2pp': did you mean 'l2p'"),
        ("l2p", "cub", "tasks=5", "unknown dataset 'cub': did you mean 'cub_lt'"),
        ("l2p", "cub_lt", "taks=5", "unknown key 'taks': did you mean 'tasks'"),
        ("l2p", "cub_lt", "lr=0.9", "unknown key 'lr': did you mean 'init_lr'"),
        ("l2p", "cub_lt", "epochs=0", "epochs must be a whole number of at least 1, got '0'"),
        ("l2p", "cub_lt", "epochs=2.5", "epochs must be a whole number of at least 1, got '2.5'"),
        ("l2p", "cub_lt", "lam=0.9", "unknown key 'lam': did you mean 'tal.lam'"),
        ("l2p", "cub_lt", "losses=ce,tall", "unknown loss 'tall': did you mean 'tal'"),
        ("l2p", "cub_lt", "tal.lamb=0.9", "unknown option of loss 'tal' 'lamb': did you mean 'lam'"),
        ("l2p", "cub_lt", "tal.lam=1.5", "lam .* must be a number between 0 and 1"),
        ("l2p", "cub_lt", "focal.gamma=1", "focal.gamma is set, but focal is not among the losses"),
        ("l2p", "cub_lt", "fidelity=exact", "unknown fidelity 'exact'"),
        ("l2p", "cub_lt", "device=gpu", "unknown device 'gpu'"),
        ("l2p", "cub_lt", "device=cuda:abc", "cuda:NUMBER, got 'cuda:abc'"),
        ("l2p", "cub_lt", "device=auto:0", "cuda:NUMBER, got 'auto:0'"),
        ("l2p", "cub_lt", "precision=fp99", "unknown precision 'fp99'"),
        ("l2p", "cub_lt", "transform=pilots", "unknown transform 'pilots'"),
        ("l2p", "cub_lt", "init_lr=inf", "init_lr must be finite, got inf"),
        ("l2p", "cub_lt", "shape=nan", "shape must be finite, got nan"),
        ("l2p", "cub_lt", "init_milestones=2024-13-45", "cannot be read"),
        ("l2p", "cub_lt", "cache=yes", "unknown cache 'yes'"),
        ("l2p", "cub_lt", "tasks=five", "tasks must be a whole number, got 'five'"),
        ("l2p", "cub_lt", "tasks=", "tasks has no value"),
        ("l2p", "cub_lt", "tasks", "settings are written key=value, got 'tasks'"),
        ("l2p", "cub_lt", "seeds=a,b", "seeds must be whole numbers"),
        ("l2p", "cub_lt", "seeds=-1", "seeds must be 0 to"),
        ("l2p", "cub_lt", "batch_size=many", "batch_size"),
        ("l2p", "cub_lt", "workers=-2", "workers must be at least 0"),
        ("l2p", "cub_lt", "init_cls=10", "init_cls and increment go together"),
        ("l2p", "cub_lt", "init_milestones={", "cannot be read"),
        ("l2p", "cub_lt", "tal.lam=high", r"tal.lam must be a number, got 'high'"),
    ],
)
def test_what_is_wrong_is_refused_at_once_with_the_nearest_name(method, dataset, item, sentence):
    with pytest.raises(PilotTalError, match=sentence):
        make_plan(method, dataset, [item])


def test_one_and_one_point_zero_are_one_run():
    one, other = (make_plan("l2p", "cub_lt", [f"tal.r={r}"]).runs[1] for r in ("1", "1.0"))
    assert one.record() == other.record()


def test_the_epochs_may_go_by_lamda_pilots_name():
    for quick in (False, True):
        assert make_plan("l2p", "demo_lt", ["tuned_epoch=3"], quick).runs[0].settings["tuned_epoch"] == 3
    with pytest.raises(PilotTalError, match="epochs and tuned_epoch are one setting"):
        make_plan("l2p", "demo_lt", ["tuned_epoch=3", "epochs=3"])


def test_a_key_given_twice_is_refused():
    with pytest.raises(PilotTalError, match="give both, or tasks alone"):
        make_plan("l2p", "cub_lt", ["tasks=5", "init_cls=20", "increment=20"])
    with pytest.raises(PilotTalError, match="tasks is given twice"):
        make_plan("l2p", "cub_lt", ["tasks=5", "tasks=6"])
    with pytest.raises(PilotTalError, match="give seed or seeds, not both"):
        make_plan("l2p", "cub_lt", ["seed=5", "seeds=6"])


def test_the_record_follows_what_is_in_a_weights_file(tmp_path):
    file = tmp_path / "vit.safetensors"
    records = []
    for content in (b"one", b"two"):
        file = tmp_path / content.decode() / "vit.safetensors"
        file.parent.mkdir()
        file.write_bytes(content)
        records.append(make_plan("l2p", "cub_lt", [f"weights={file}"]).runs[0].record()["weights"])
    assert records[0] != records[1] and all(r.startswith("vit.safetensors@") for r in records)


@pytest.mark.parametrize("method", METHODS)
def test_every_listed_key_is_taken(method):
    keys = all_keys(method)
    assert len(keys) == len(set(keys))
    status, printed = command("list", method)
    assert status == 0
    defaults = dict(line.split("=", 1) for line in printed.splitlines())
    assert set(defaults) == set(keys) - {"loss", "seed"}
    losses = f"losses={','.join(LOSSES)}"
    for key, value in defaults.items():
        if value and key != "losses":
            make_plan(method, "cub_lt", [f"{key}={value}", losses])
