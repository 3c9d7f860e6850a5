"""`key=value` settings: what they mean, how lists multiply, and what is refused at once."""

import pytest
from helpers.cli import command

from data_lt import CARDS
from data_lt.errors import UserError
from pilot_tal.backbone.load import file_fingerprint
from pilot_tal.config.grid import UPSTREAM_ONLY, known_settings, run_config, study_config
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.schema import defaults_of
from pilot_tal.upstream.checkout import LEARNERS as UPSTREAM_LEARNERS

REFERENCES = ["simplecil", "plda"]


def test_defaults_are_the_papers():
    plan = study_config("l2p", "cub_lt")
    trained = [(run.loss.name, run.seed) for run in plan.runs if run.method == "l2p"]
    assert trained == [(loss, seed) for seed in (1993, 1994, 1995) for loss in ("ce", "tal", "tal_auto")]
    run = plan.runs[1]
    assert (run.settings.tasks, run.settings.fidelity, run.method_config.tuned_epoch) == (5, "pilot", 20)
    assert run.loss.options["lam"] == 0.995 and run.loss.options["r"] == 1.0
    assert run.settings.backbone == "vit_base_patch16_224.augreg_in21k_ft_in1k" and run.settings.weights == "hub"
    assert run.changed == {} and not run.quick


def test_defaults_depend_on_dataset_and_method():
    assert study_config("l2p", "cub_lt").runs[0].method_config.batch_size == 16
    assert study_config("l2p", "imagenetr_lt").runs[0].method_config.batch_size == 32
    assert study_config("coda_prompt", "imagenetr_lt").runs[0].settings.transform == "coda"
    assert study_config("coda_prompt", "cub_lt").runs[0].settings.transform == "pilot"
    demo = study_config("lae", "demo_lt").runs[0]
    assert (demo.settings.backbone, demo.settings.weights, demo.settings.transform) == (
        "demo_vit",
        "bundled",
        "characters",
    )
    assert study_config("lae", "demo_lt", ["epochs=3"]).runs[0].method_config.tuned_epoch == 3
    assert study_config("lae", "demo_lt", quick=True).runs[0].method_config.tuned_epoch == 2
    assert study_config("lae", "demo_lt", ["epochs=3"], quick=True).runs[0].method_config.tuned_epoch == 3


def test_everything_can_be_set():
    items = "tasks=10 seeds=7 losses=ce,tal,balanced_softmax tal.lam=0.99 fidelity=fixed epochs=2 init_lr=0.5"
    items += " data_root=/images weights=random device=cpu output=out workers=3 cache=off threads=2 n_max=9"
    plan = study_config("mos", "cub_lt", [*items.split(), "references=none"])
    assert [run.loss.name for run in plan.runs] == ["ce", "tal", "balanced_softmax"]
    run = plan.runs[1]
    assert (run.seed, run.settings.tasks, run.settings.fidelity, run.loss.options["lam"]) == (7, 10, "fixed", 0.99)
    assert (run.method_config.tuned_epoch, run.method_config.init_lr, run.data.n_max) == (2, 0.5, 9)
    machine = plan.hardware
    assert (machine.data_root, machine.output, machine.workers, machine.threads) == ("/images", "out", 3, 2)
    assert (machine.device, machine.cache) == ("cpu", "off")
    assert study_config("l2p", "cub_lt", ["init_milestones=[3,5]"]).runs[0].method_config.init_milestones == (3, 5)


def test_home_directory_is_expanded_in_paths(tmp_path, monkeypatch):
    """A shell leaves the ~ in `weights=~/w.safetensors` as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "w.safetensors").write_bytes(b"weights")
    items = ["weights=~/w.safetensors", "order=~/order.txt", "losses=ce", "seeds=1"]
    settings = study_config("lae", "cub_lt", items).runs[0].settings
    assert (settings.weights, settings.order) == (str(tmp_path / "w.safetensors"), str(tmp_path / "order.txt"))
    assert file_fingerprint(settings.weights).startswith("w.safetensors@")


def test_data_root_does_not_change_the_split():
    (run,) = study_config(
        "lae", "cub_lt", ["folder=mine", "manifest=list.txt", "losses=ce", "seeds=1", "references=none"]
    ).runs
    assert (run.data.folder, run.data.manifest) == ("mine", "list.txt")


def test_changes_are_listed_with_their_defaults():
    run = study_config("l2p", "cub_lt", ["tasks=10", "batch_size=16", "n_max=40", "n_min=3", "tal.r=2"]).runs[1]
    assert run.changed == {"tasks": [10, 5], "n_min": [3, 2], "r": [2.0, 1.0]}
    assert study_config("l2p", "cub_lt", ["split_seed=1993"]).runs[0].changed == {}
    assert study_config("l2p", "cub_lt", ["law=none"]).runs[0].data.law == "none"
    assert study_config("l2p", "cub_lt", ["law=null"]).runs[0].data.law is None


def test_lists_multiply():
    items = [
        "tasks=5,10",
        "losses=ce,tal",
        "tal.lam=0.9,0.99",
        "tal.r=1,2",
        "seeds=1,2",
        "g_prompt_layer_idx=[0,1],[0]",
        "references=none",
    ]
    plan = study_config("dualprompt", "cub_lt,food101_lt", items)
    assert len(plan.runs) == 2 * 2 * 2 * 2 * (1 + 4)
    assert len({(r.dataset, r.settings.tasks, r.method_config.g_prompt_layer_idx, r.seed, r.loss.name,
                 *r.loss.options.values()) for r in plan.runs}) == len(plan.runs)  # fmt: skip
    ce = [run for run in plan.runs if run.loss.name == "ce"]
    assert len(ce) == 16 and all(run.loss.options == {} for run in ce)


def test_all_means_every_method_and_the_papers_datasets():
    plan = study_config("all", "all", ["seeds=1", "losses=ce"])
    assert {run.method for run in plan.runs} == set(LEARNERS)
    assert {run.dataset for run in plan.runs} == {"cub_lt", "imagenetr_lt", "food101_lt"}
    assert len(plan.runs) == 3 * len(LEARNERS)


def test_training_free_method_runs_once_per_seed(monkeypatch):
    monkeypatch.setattr(LEARNERS["lae"], "trains", classmethod(lambda cls, config: False))
    plan = study_config("lae,l2p", "cub_lt", ["seeds=1,2", "losses=ce,tal", "references=none"])
    assert [(run.method, run.loss.name) for run in plan.runs] == [
        ("lae", "none"), ("lae", "none"), *(2 * [("l2p", "ce"), ("l2p", "tal")]),
    ]  # fmt: skip


def test_references_share_seeds_data_and_conditions_with_the_methods_they_stand_beside():
    items = ["seeds=1,2", "tasks=5,10", "fidelity=fixed", "n_max=9", "epochs=3", "batch_size=7", "tal.lam=0.9,0.99"]
    plan = study_config("l2p,lae", "cub_lt,food101_lt", items)
    beside = [run for run in plan.runs if run.loss.name == "none"]
    kinds = [(run.method, run.dataset, run.settings.tasks, run.seed) for run in beside]
    wanted = [(m, d, t, s) for d in ("cub_lt", "food101_lt") for m in REFERENCES for t in (5, 10) for s in (1, 2)]
    assert sorted(kinds) == sorted(wanted)
    trained = [run for run in plan.runs if run.loss.name != "none"]
    for run in beside:
        like = [
            r
            for r in trained
            if (r.dataset, r.settings, r.data, r.seed) == (run.dataset, run.settings, run.data, run.seed)
        ]
        assert {r.method for r in like} == {"l2p", "lae"}
    assert all(run.method_config.batch_size != 7 for run in beside)


def test_references_are_left_out_where_they_add_nothing():
    def methods(method: str, *items: str) -> list[str]:
        return [run.method for run in study_config(method, "cub_lt", ["seeds=1", *items]).runs]

    assert methods("l2p", "losses=ce", "references=none") == ["l2p"]
    assert methods("l2p", "losses=ce", "references=simplecil") == ["l2p", "simplecil"]
    assert methods("simplecil") == ["simplecil"]
    assert methods(",".join([*REFERENCES, "l2p"]), "losses=ce") == [*REFERENCES, "l2p"]
    assert [run.method for run in run_config("l2p", "cub_lt").runs] == ["l2p"]
    with pytest.raises(UserError, match="lae trains; name it among the methods"):
        methods("l2p", "references=lae")
    with pytest.raises(UserError, match="unknown method 'simple'"):
        methods("l2p", "references=simple")


def test_any_loss_of_the_study_may_be_its_baseline():
    assert study_config("l2p", "cub_lt").baseline == "ce"
    assert study_config("l2p", "cub_lt", ["baseline=tal"]).baseline == "tal"
    with pytest.raises(UserError, match="baseline=focal is not among the losses ce, tal, tal_auto"):
        study_config("l2p", "cub_lt", ["baseline=focal"])


def test_setting_of_some_methods_applies_only_to_those():
    plan = study_config(
        "simplecil,l2p,mos", "cub_lt", ["epochs=3", "size=20", "seeds=1", "losses=ce", "references=none"]
    )
    assert [run.method for run in plan.runs] == ["simplecil", "l2p", "mos"]
    assert [run.method_config.tuned_epoch for run in plan.runs] == [0, 3, 3]
    assert plan.runs[1].method_config.size == 20 and "size" not in plan.runs[2].changed


def test_data_root_order_is_command_environment_default(monkeypatch):
    monkeypatch.delenv("PILOT_TAL_DATA", raising=False)
    assert study_config("l2p", "cub_lt").hardware.data_root == "data"
    monkeypatch.setenv("PILOT_TAL_DATA", "/from/environment")
    assert study_config("l2p", "cub_lt").hardware.data_root == "/from/environment"
    assert study_config("l2p", "cub_lt", ["data_root=/given"]).hardware.data_root == "/given"


@pytest.mark.parametrize(
    ("method", "dataset", "items", "sentence"),
    [
        ("l2pp", "cub_lt", "", "unknown method 'l2pp': did you mean 'l2p'"),
        ("l2p,laee", "cub_lt", "", "unknown method 'laee': did you mean 'lae'"),
        (",", "cub_lt", "", "unknown method ','"),
        ("l2p", "cub", "", "unknown dataset 'cub': did you mean 'cub_lt'"),
        ("l2p", "cub_lt", "taks=5", r"^unknown setting 'taks': did you mean 'tasks'\?$"),
        ("l2p", "cub_lt", "epoch=1", r"^unknown setting 'epoch': did you mean 'epochs'\?$"),
        ("l2p", "cub_lt", "lr=0.9", "did you mean 'init_lr'"),
        ("l2p", "cub_lt", "lam=0.9", "did you mean 'tal.lam'"),
        ("l2p", "cub_lt", "crct_epochs=3", r"^unknown setting 'crct_epochs' of l2p: it is one of mos$"),
        ("simplecil", "cub_lt", "epochs=3", "^unknown setting 'epochs' of simplecil: it is one of l2p, "),
        ("l2p", "cub_lt", "epochs=0", "epochs must be a whole number from 1 to 100000, got 0"),
        ("l2p", "cub_lt", "epochs=100000000000000000000", "epochs must be"),
        ("l2p", "cub_lt", "losses=ce,tall", "unknown loss 'tall': did you mean 'tal'"),
        ("l2p", "cub_lt", "losses=,", "losses has no value"),
        ("l2p", "cub_lt", "tal.lamb=0.9", "unknown setting 'tal.lamb': did you mean 'tal.lam'"),
        ("l2p", "cub_lt", "tal.lam=1.5", "tal.lam must be a number above 0 and below 1"),
        ("l2p", "cub_lt", "tal.lam=0.9,high", "tal.lam must be a number .*got 'high'"),
        ("l2p", "cub_lt", "focal.gamma=1", "focal.gamma is set, but focal is not among the losses ce, tal"),
        ("l2p", "cub_lt", "losses=focal focal.gamma=true", "focal.gamma must be a number"),
        ("l2p", "cub_lt", "fidelity=exact", "fidelity must be one of pilot, fixed, got 'exact'"),
        ("l2p", "cub_lt", "device=gpu", "device must be auto, cpu, mps, cuda or cuda:NUMBER, got 'gpu'"),
        ("l2p", "cub_lt", "device=cuda:99999999999999999999", "device must be"),
        ("l2p", "cub_lt", "seeds=a,b", "seeds must be a whole number"),
        ("l2p", "cub_lt", "seeds=-1", "seeds must be a whole number from 0 to 4294967295, got -1"),
        ("l2p", "cub_lt", "seeds=", "seeds has no value"),
        ("l2p", "cub_lt", "workers=-2", "workers must be a whole number from 0"),
        ("l2p", "cub_lt", f"output={'x' * 300}", "output cannot be a path: it or a name in it is too long"),
        ("l2p", "cub_lt", f"data_root={'x' * 300}", "data_root cannot be a path: it or a name in it is too long"),
        ("l2p", "cub_lt", "tasks", "settings are written key=value, got 'tasks'"),
        ("l2p", "cub_lt", "tasks=5 tasks=6", "tasks is given twice"),
        ("l2p", "cub_lt", "seed=5 seeds=6", "seed and seeds are one setting"),
        ("l2p", "cub_lt", "tuned_epoch=3 epochs=3", "tuned_epoch and epochs are one setting"),
        ("l2p", "cub_lt", "init_cls=10", "init_cls and increment go together"),
        ("l2p", "cub_lt", "tasks=5 init_cls=10 increment=3", "give one of them"),
        ("l2p", "cub_lt", "init_milestones={a:1}", "init_milestones must be a list"),
        ("l2p", "cub_lt", "init_milestones=[-5,3,3]", "init_milestones must be"),
        ("l2p", "cub_lt", "init_lr_decay=-1", "init_lr_decay must be"),
        ("dualprompt", "cub_lt", "g_prompt_layer_idx=[0,0]", "must not name a value twice"),
        ("dualprompt", "cub_lt", "g_prompt_layer_idx=[-1,99]", "g_prompt_layer_idx must be"),
        ("l2p", "cub_lt", "top_k=11", "top_k must be at most the pool's size 10, got 11"),
        ("coda_prompt", "cub_lt", "prompt_param=[10,3,0]", "even length"),
        ("l2p", "cub_lt", "normalize=0.5/", "normalize must be auto, weights"),
        ("simplecil", "cub_lt", "loss=tal", "simplecil trains nothing with a loss; leave losses=tal out"),
        ("simplecil", "cub_lt", "tal.r=2", "simplecil trains nothing with a loss; leave tal.r=2 out"),
        ("l2p,lae", "cub_lt", "crct_epochs=3", "unknown setting 'crct_epochs' of l2p, lae"),
        ("dualprompt", "cub_lt", "e_prompt_layer_idx=[1,2]", r"not both, but g_prompt_layer_idx and .* name \[1\]"),
        ("l2p", "cub_lt", "scheduler=cosine init_lr=0.1 min_lr=0.2", "min_lr, where the cosine ends, must not exceed"),
    ],
)
def test_wrong_settings_raise_one_sentence(method, dataset, items, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        study_config(method, dataset, items.split())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", LEARNERS)
def test_every_listed_setting_is_taken_with_its_default(method):
    status, printed = command("list", method, "--dataset", "demo_lt")
    assert status == 0
    shown = dict(line.split(" ")[0].split("=", 1) for line in printed.splitlines())
    assert set(shown) == {setting.name for setting in known_settings(method).values()}
    trains = study_config(method, "demo_lt").runs[0].loss.name != "none"
    losses = [f"losses={','.join(LOSSES)}"] if trains else []
    usual = study_config(method, "demo_lt", losses).runs
    for key, value in shown.items():
        if not trains and "." in key:
            continue
        if value and key not in ("losses", "plugins", "tal.memory_epochs", "tal_auto.memory_epochs"):
            more = [] if key == "seeds" else ["seeds=1993,1994,1995"]
            assert study_config(method, "demo_lt", [f"{key}={value}", *losses, *more]).runs == usual, key


@pytest.mark.parametrize("loss", LOSSES)
def test_list_shows_the_settings_of_a_loss(loss):
    status, printed = command("list", loss)
    assert status == 0
    shown = [line.split("=")[0] for line in printed.splitlines()[1:]]
    assert shown == [f"{loss}.{option}" for option in defaults_of(LOSSES[loss])]


def test_list_shows_the_defaults_of_compare():
    _, printed = command("list", "l2p")
    lines = printed.splitlines()
    for wanted in ("losses=ce,tal,tal_auto ", "seeds=1993,1994,1995 ", "references=simplecil,plda ", "baseline=ce "):
        assert any(line.startswith(wanted) for line in lines), wanted


def test_method_of_upstream_only_is_named_as_such():
    assert set(UPSTREAM_ONLY) == set(UPSTREAM_LEARNERS) - set(LEARNERS)
    with pytest.raises(UserError, match=r"slca is not built in; it is available through .*upstream"):
        study_config("slca", "cub_lt")


def test_list_names_everything():
    status, printed = command("list")
    assert status == 0
    for name in (*LEARNERS, *CARDS, *LOSSES):
        assert f"  {name} " in printed


@pytest.mark.parametrize(
    ("items", "sentence"),
    [
        (["n_min=3", "rho=10"], "give one of the two"),
        (["task_sizes=100,100", "tasks=5"], "give one of them"),
        (["task_sizes=100,100", "init_cls=5", "increment=5"], "give one of them"),
        (["task_sizes=100,0"], "task_sizes must be a list such as [1,2] of whole number from 1"),
        (["task_rho=0.5"], "task_rho must be a number from 1 to 1000000"),
        (["n_max=2", "n_min=3"], "n_max"),
        (["law=natural", "n_max=9"], "leave out n_max"),
        (["law=none", "rho=10"], "law=none does not use rho; leave out rho"),
        (["law=none", "shape=3"], "law=none does not use shape"),
        (["law=exponential", "shape=3"], "leave out shape"),
        (["manifest=x.txt", "n_max=9"], "manifest x.txt already fixes the split; leave out n_max"),
        (["manifest=x.txt", "classes=present"], "already fixes the split; leave out classes"),
        (["normalize=123.675/58.4"], "and a deviation from 0.001 to 1000, each one number or three, got 123.675/58.4"),
        (["normalize=0.5/0"], "a deviation from 0.001"),
        (["normalize=٣/٣"], "normalize must be"),
        (["device=cuda:٣"], "device must be"),
        (["tasks=1,2,3,4,5,6,7,8,9,10", "epochs=1,2,3,4,5,6,7,8,9,10", "init_lr=1,2,3,4,5,6,7,8,9,10",
          "batch_size=1,2,3,4,5,6,7,8,9,10", "seeds=1,2,3"], "more than 10,000 runs"),
    ],
)  # fmt: skip
def test_contradictory_settings_are_refused_before_files_are_searched(items, sentence):
    with pytest.raises(UserError) as caught:
        study_config("l2p", "cub_lt", [*items, "data_root=nowhere"])
    assert sentence in str(caught.value)
