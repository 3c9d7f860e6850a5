"""The settings of the learners: LAMDA-PILOT's values, twenty epochs, and errors that name the key."""

import dataclasses

import pytest
import yaml
from learner_world import METHODS

from pilot_tal.config import config_path
from pilot_tal.errors import PilotTalError
from pilot_tal.learners import config_dict, load_method_config
from pilot_tal.learners.config import CONFIGS

PLAIN = {
    "l2p": (0.001875, 16, 0.0, "adam", "constant"),
    "dualprompt": (0.001, 24, 0.0, "adam", "constant"),
    "coda_prompt": (0.001, 128, 0.0, "adam", "cosine"),
    "lae": (0.0028125, 128, 0.0, "adam", "constant"),
    "mos": (0.03, 48, 0.0005, "sgd", "cosine"),
}
IMAGENET_R = {"l2p": (0.001875, 32, 0.0), "lae": (0.00046875, 128, 0.0), "mos": (0.05, 16, 0.005)}


@pytest.mark.parametrize("method", METHODS)
def test_values(method):
    config = load_method_config(method)
    found = (config.init_lr, config.batch_size, config.weight_decay, config.optimizer, config.scheduler)
    assert found == PLAIN[method]
    assert config.tuned_epoch == 20
    assert config.drop_last == (method == "coda_prompt")
    for dataset in ("cub_lt", "food101_lt", "demo_lt", None):
        assert load_method_config(method, dataset) == config
    other = load_method_config(method, "imagenetr_lt")
    assert (other.init_lr, other.batch_size, other.weight_decay) == IMAGENET_R.get(method, PLAIN[method][:3])
    assert other.tuned_epoch == 20


@pytest.mark.parametrize("method", METHODS)
def test_the_file_names_what_the_class_knows(method):
    values = yaml.safe_load(config_path("methods", method).read_text())
    values.pop("datasets", None)
    rare = {"init_milestones", "init_lr_decay", "drop_last"}
    assert {field.name for field in dataclasses.fields(CONFIGS[method])} - set(values) <= rare


def test_overrides_come_last_and_are_typed():
    config = load_method_config("mos", "imagenetr_lt", {"batch_size": 4, "init_lr": "1e-2", "ensemble": False})
    assert (config.batch_size, config.init_lr, config.ensemble, config.weight_decay) == (4, 0.01, False, 0.005)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.batch_size = 3
    assert config_dict(config)["batch_size"] == 4
    assert load_method_config("lae", overrides={"num_freeze_epochs": 2}).num_freeze_epochs == 2


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        ("mso", {}, "unknown method 'mso': did you mean 'mos'"),
        ("l2p", {"topk": 3}, "unknown setting of l2p 'topk': did you mean 'top_k'"),
        ("l2p", {"size": "big"}, "setting size of l2p"),
        ("l2p", {"size": 2, "top_k": 3}, "top_k must be at most the pool's size 2, got 3"),
        ("l2p", {"head_type": "mean"}, "head_type must be one of prompt, token"),
        ("dualprompt", {"head_type": "prompt"}, "head_type must be one of token"),
        ("coda_prompt", {"prompt_param": [10, 3, 0]}, "even length"),
        ("coda_prompt", {"prompt_param": [10]}, "prompt_param must be"),
        ("lae", {"pet_cls": "prefix"}, "pet_cls must be one of Prefix, Adapter, LoRA"),
        ("lae", {"ema_decay": 2}, "ema_decay must be between 0 and 1"),
        ("mos", {"adapter_momentum": 1.0}, "adapter_momentum must be in"),
        ("mos", {"tuned_epoch": 0}, "tuned_epoch must be at least 1, got 0"),
        ("mos", {"optimizer": "lion"}, "optimizer must be one of adam, adamw, sgd"),
    ],
)
def test_errors(method, overrides, message):
    with pytest.raises(PilotTalError, match=message):
        load_method_config(method, overrides=overrides)
