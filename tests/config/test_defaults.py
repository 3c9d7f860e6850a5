"""The settings of the learners: LAMDA-PILOT's values, twenty epochs, and errors that name the key."""

import dataclasses

import pytest
import yaml

from data_lt import CARDS
from data_lt.errors import UserError
from pilot_tal.config.grid import study_config
from pilot_tal.config.settings import _config_file, defaults, method_config
from pilot_tal.learners import LEARNERS

# LAMDA-PILOT's configuration files.
PLAIN = {
    "l2p": (0.001875, 16, 0.0, "adam", "constant"),
    "dualprompt": (0.001, 24, 0.0, "adam", "constant"),
    "coda_prompt": (0.001, 128, 0.0, "adam", "cosine"),
    "lae": (0.0028125, 128, 0.0, "adam", "constant"),
    "mos": (0.03, 48, 0.0005, "sgd", "cosine"),
}
IMAGENET_R = {"l2p": (0.001875, 32, 0.0), "lae": (0.00046875, 128, 0.0), "mos": (0.05, 16, 0.005)}


@pytest.mark.parametrize("method", PLAIN)
def test_values(method):
    config = method_config(method)
    found = (config.init_lr, config.batch_size, config.weight_decay, config.optimizer, config.scheduler)
    assert found == PLAIN[method]
    assert config.tuned_epoch == 20
    assert config.drop_last == (method == "coda_prompt")
    for dataset in ("cub_lt", "food101_lt", "demo_lt"):
        assert method_config(method, dataset) == config
    assert defaults(method, "demo_lt")["tuned_epoch"] == 20
    other = method_config(method, "imagenetr_lt")
    assert (other.init_lr, other.batch_size, other.weight_decay) == IMAGENET_R.get(method, PLAIN[method][:3])


@pytest.mark.parametrize("method", LEARNERS)
def test_config_file_and_class_have_the_same_settings(method):
    values = yaml.safe_load(_config_file(method).read_text())
    values.pop("datasets", None)
    rare = {"init_milestones", "init_lr_decay", "drop_last"}
    assert {field.name for field in dataclasses.fields(LEARNERS[method].config_class)} - set(values) <= rare


@pytest.mark.parametrize("method", LEARNERS)
@pytest.mark.parametrize("dataset", CARDS)
def test_all_defaults_are_of_their_type_and_in_range(method, dataset):
    values = defaults(method, dataset)
    assert values["fidelity"] == "pilot" and values["tasks"] == 5
    assert method_config(method, **{k: v for k, v in values.items() if hasattr(method_config(method), k)})


def test_changes_come_last_and_settings_are_frozen():
    config = method_config("mos", "imagenetr_lt", batch_size=4, ensemble=False)
    assert (config.batch_size, config.ensemble, config.weight_decay) == (4, False, 0.005)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.batch_size = 3
    with pytest.raises(UserError, match="unknown setting of l2p 'topk': did you mean 'top_k'"):
        method_config("l2p", topk=3)


def test_another_backbone_does_not_inherit_the_demos_weights():
    run = study_config("l2p", "demo_lt", ["backbone=deit_tiny_patch16_224"]).runs[0]
    assert run.settings.weights == "hub"
    assert run.changed == {"backbone": ["deit_tiny_patch16_224", "demo_vit"]}
    given = study_config("l2p", "demo_lt", ["backbone=deit_tiny_patch16_224", "weights=random"]).runs[0]
    assert given.settings.weights == "random"
    assert study_config("l2p", "folder_lt", ["backbone=demo_vit"]).runs[0].settings.weights == "bundled"
    assert study_config("l2p", "demo_lt", ["backbone=demo_vit"]).runs[0].changed == {}
