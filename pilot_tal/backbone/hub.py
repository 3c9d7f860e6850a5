"""Weights from timm's hub: from its cache on this machine, or over a network that was seen to answer."""

import contextlib
import logging
import threading
from typing import Any

from data_lt.errors import UserError

SECONDS = 2.5  # to wait for the hub's first answer
_SAFE_FILE = "model.safetensors"


def hub_options(name: str) -> dict[str, Any]:
    """What `timm.create_model` needs to load a model's pretrained weights.

    Raises:
        UserError: timm has none of that name, or they are neither in the cache nor to be had; within seconds.
    """
    import timm
    from huggingface_hub import constants, try_to_load_from_cache

    arch, _, tag = name.partition(".")
    known = timm.list_pretrained(f"{arch}.*")
    if not known or (tag and name not in known):
        tags = f"; it has {', '.join(known)}" if known else ""
        raise UserError(f"timm has no weights of the name {name!r}{tags}; name others, or give weights=FILE")
    card = timm.get_pretrained_cfg(name)
    if not card.hf_hub_id:
        return {"pretrained": True}
    file = card.hf_hub_filename or _SAFE_FILE
    cached = try_to_load_from_cache(card.hf_hub_id, file)
    if isinstance(cached, str) and file.endswith(".safetensors"):
        return {"pretrained": True, "pretrained_cfg_overlay": {"file": cached, "custom_load": False}}
    if constants.HF_HUB_OFFLINE or not _answers(constants.ENDPOINT):
        raise unreachable(name)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # errors are raised as one sentence
    return {"pretrained": True}


def unreachable(name: str) -> UserError:
    """The one sentence for weights that cannot be had."""
    return UserError(
        f"cannot get the weights of {name} from timm's hub: it does not answer, and they are not in its cache on this "
        "machine; connect to the network once, or give weights=FILE"
    )


def _answers(url: str) -> bool:
    """Whether a server answers at all, asked once; even a name server that keeps silent costs `SECONDS` only."""
    import requests

    answers = []

    def ask() -> None:
        with contextlib.suppress(Exception):  # whatever it is, there was no answer
            answers.append(requests.head(url, timeout=SECONDS))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS)
    return bool(answers)
