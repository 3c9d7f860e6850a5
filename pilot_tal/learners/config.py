"""Typed settings of the five learners, under LAMDA-PILOT's names.

The classes give the types, the allowed values and the neutral value of branches no shipped configuration uses;
`configs/methods/<method>.yaml` gives the values, with a section for the data sets that differ.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pilot_tal.config import config_path
from pilot_tal.errors import PilotTalError, unknown_name


@dataclass(frozen=True)
class MethodConfig:
    """What every learner has: the schedule of one task and its optimizer."""

    tuned_epoch: int
    init_lr: float
    batch_size: int
    weight_decay: float
    optimizer: str
    scheduler: str
    min_lr: float = 0.0
    init_milestones: list[int] = field(default_factory=list)
    init_lr_decay: float = 0.1
    drop_last: bool = False

    def __post_init__(self):
        self._choice("optimizer", ("adam", "adamw", "sgd"))
        self._choice("scheduler", ("constant", "cosine", "steplr"))
        self._at_least(1, "tuned_epoch", "batch_size")
        self._at_least(0, "init_lr", "weight_decay", "min_lr")

    def _choice(self, name: str, allowed: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in allowed:
            raise PilotTalError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")

    def _at_least(self, low: float, *names: str) -> None:
        for name in names:
            if not getattr(self, name) >= low:
                raise PilotTalError(f"{name} must be at least {low}, got {getattr(self, name)}")


@dataclass(frozen=True)
class PoolConfig(MethodConfig):
    """What L2P and DualPrompt share: a pool of prompts, picked by their keys."""

    size: int = 10
    length: int = 5
    top_k: int = 5
    head_type: str = "prompt"
    embedding_key: str = "cls"
    batchwise_prompt: bool = True
    use_prompt_mask: bool = False
    shared_prompt_pool: bool = False
    shared_prompt_key: bool = False
    prompt_key_init: str = "uniform"
    pull_constraint: bool = True
    pull_constraint_coeff: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        self._choice("embedding_key", ("cls", "mean", "max", "mean_max"))
        self._choice("prompt_key_init", ("uniform", "zero"))
        self._at_least(1, "size", "length", "top_k")
        if self.top_k > self.size:
            raise PilotTalError(f"top_k must be at most the pool's size {self.size}, got {self.top_k}")


@dataclass(frozen=True)
class L2PConfig(PoolConfig):
    """L2P."""

    def __post_init__(self):
        super().__post_init__()
        self._choice("head_type", ("prompt", "token", "token+prompt", "gap"))


@dataclass(frozen=True)
class DualPromptConfig(PoolConfig):
    """DualPrompt."""

    head_type: str = "token"
    top_k: int = 1
    g_prompt_length: int = 5
    g_prompt_layer_idx: list[int] = field(default_factory=lambda: [0, 1])
    e_prompt_layer_idx: list[int] = field(default_factory=lambda: [2, 3, 4])
    use_prefix_tune_for_e_prompt: bool = True

    def __post_init__(self):
        super().__post_init__()
        self._choice("head_type", ("token",))
        self._at_least(1, "g_prompt_length")


@dataclass(frozen=True)
class CODAPromptConfig(MethodConfig):
    """CODA-Prompt. `prompt_param` is [pool size, prompt length, weight of the orthogonality term]."""

    prompt_param: list[float] = field(default_factory=lambda: [100, 8, 0.0])
    prompt_layer_idx: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4])

    def __post_init__(self):
        super().__post_init__()
        pool, length, weight = self.prompt_param if len(self.prompt_param) == 3 else (0, 0, 0)
        if pool < 1 or length < 2 or length % 2 or weight < 0:
            raise PilotTalError(
                "prompt_param must be [pool size >= 1, even length >= 2, orthogonality weight >= 0], "
                f"got {list(self.prompt_param)}"
            )


@dataclass(frozen=True)
class LAEConfig(MethodConfig):
    """LAE. `num_freeze_epochs` null keeps LAMDA-PILOT's share: three fifths of the epochs."""

    ema_decay: float = 0.9999
    num_freeze_epochs: int | None = None
    pet_cls: str = "Prefix"
    pet_length: int = 10
    down_sample_dim: int = 5
    lora_rank: int = 5
    adapt_blocks: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4])

    def __post_init__(self):
        super().__post_init__()
        self._choice("pet_cls", ("Prefix", "Adapter", "LoRA"))
        self._at_least(1, "pet_length", "down_sample_dim", "lora_rank")
        if not 0 <= self.ema_decay <= 1:
            raise PilotTalError(f"ema_decay must be between 0 and 1, got {self.ema_decay}")


@dataclass(frozen=True)
class MOSConfig(MethodConfig):
    """MOS."""

    reg: float = 0.1
    adapter_momentum: float = 0.1
    ensemble: bool = True
    crct_epochs: int = 30
    ca_lr: float = 0.005
    ca_storage_efficient_method: str = "covariance"
    n_centroids: int = 10
    ffn_num: int = 16
    adapter_scale: float = 0.1
    adapter_dropout: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        self._choice("ca_storage_efficient_method", ("covariance", "variance", "multi-centroid"))
        self._at_least(1, "n_centroids", "ffn_num")
        self._at_least(0, "crct_epochs", "ca_lr", "reg")
        for name in ("adapter_momentum", "adapter_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise PilotTalError(f"{name} must be in [0, 1), got {getattr(self, name)}")


CONFIGS: dict[str, type[MethodConfig]] = {
    "l2p": L2PConfig,
    "dualprompt": DualPromptConfig,
    "coda_prompt": CODAPromptConfig,
    "lae": LAEConfig,
    "mos": MOSConfig,
}


def load_method_config(
    method: str, dataset: str | None = None, overrides: Mapping[str, Any] | None = None
) -> MethodConfig:
    """The settings of `method`: its YAML file, then the data set's section, then `overrides`.

    Raises:
        PilotTalError: For an unknown method or key, or a value of the wrong type or range.
    """
    if method not in CONFIGS:
        raise unknown_name("method", method, CONFIGS)
    values = OmegaConf.to_container(OmegaConf.load(config_path("methods", method)))
    by_dataset = values.pop("datasets", None) or {}
    values |= by_dataset.get(dataset, {})
    return make_config(method, values | dict(overrides or {}))


def make_config(method: str, values: Mapping[str, Any]) -> MethodConfig:
    """Builds the typed settings from plain values; the first wrong one is named."""
    cls = CONFIGS[method]
    known = {entry.name for entry in fields(cls)}
    for name in values:
        if name not in known:
            raise unknown_name(f"setting of {method}", name, known)
    try:
        schema = OmegaConf.structured(cls)
        OmegaConf.set_readonly(schema, False)  # frozen classes give read-only schemas
        return OmegaConf.to_object(OmegaConf.merge(schema, dict(values)))
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise PilotTalError(f"setting {error.full_key or '?'} of {method}: {reason}") from error


def config_dict(config: MethodConfig) -> dict[str, Any]:
    """Plain values of the settings, for records."""
    return asdict(config)
