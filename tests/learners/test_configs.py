"""The settings of the learners: LAMDA-PILOT's values of the later ones, defaults, and errors that name the key."""

import pytest

from data_lt.errors import UserError
from pilot_tal.config.settings import method_config
from pilot_tal.learners import LEARNERS
from pilot_tal.schema import defaults_of


def test_values():
    """Those of exps/simplecil.json, ranpac.json and ease.json; the others' are in tests/plan/test_defaults.py."""
    assert method_config("simplecil").batch_size == 256 and method_config("simplecil").tuned_epoch == 0
    ranpac, ease = method_config("ranpac"), method_config("ease")
    for config, rate in ((ranpac, 0.01), (ease, 0.025)):
        assert (config.init_lr, config.batch_size, config.weight_decay, config.min_lr) == (rate, 48, 0.0005, 0.0)
        assert (config.optimizer, config.scheduler, config.tuned_epoch, config.ffn_num) == ("sgd", "cosine", 20, 64)
    assert (ranpac.M, ranpac.adapter) == (10_000, True)
    assert (ease.alpha, ease.beta) == (0.1, 0.0)
    assert (ease.recalc_sim, ease.use_init_ptm) == (True, False)


@pytest.mark.parametrize("method", ["ranpac", "ease"])
def test_values_for_imagenet_r(method):
    config = method_config(method, "imagenetr_lt")
    assert (config.init_lr, config.batch_size, config.weight_decay, config.tuned_epoch) == (0.05, 16, 0.005, 20)


@pytest.mark.parametrize("method", LEARNERS)
def test_config_class_defaults_equal_the_yaml_file(method):
    """So that a recording, which has no file, means the same by what it leaves out."""
    config = method_config(method)
    different = {k for k, v in defaults_of(LEARNERS[method].config_class).items() if getattr(config, k) != v}
    assert different <= {"min_lr"}  # which a recording names, or the reader does


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("l2p", {"topk": 3}, "unknown setting of l2p 'topk': did you mean 'top_k'"),
        ("l2p", {"size": "big"}, "size must be a whole number from 1 to 10000, got 'big'"),
        ("l2p", {"size": 2, "top_k": 3}, "top_k must be at most the pool's size 2, got 3"),
        ("coda_prompt", {"prompt_param": [10, 3, 0]}, "even length"),
        ("coda_prompt", {"prompt_param": [10]}, "prompt_param must be"),
        ("lae", {"pet_cls": "prefix"}, "pet_cls must be one of Prefix, Adapter, LoRA"),
        ("lae", {"ema_decay": 2}, "ema_decay must be a number from 0 to 1"),
        ("mos", {"adapter_momentum": 1.0}, "adapter_momentum must be a number"),
        ("mos", {"tuned_epoch": 0}, "tuned_epoch must be a whole number from 1"),
        ("mos", {"optimizer": "lion"}, "optimizer must be one of adam, adamw, sgd"),
        ("ranpac", {"M": 0}, "M must be a whole number from 1"),
        ("ranpac", {"adapter": 1}, "adapter must be true or false, got 1"),
        ("ease", {"alpha": -1}, "alpha must be a number from 0"),
        ("simplecil", {"tuned_epoch": 2}, "unknown setting of simplecil 'tuned_epoch'"),
    ],
)
def test_errors(method, changes, message):
    with pytest.raises(UserError, match=message):
        method_config(method, **changes)
