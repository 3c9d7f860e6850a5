"""Exported models on the Hugging Face hub: pushed with their checksums, fetched by address and revision."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_lt.errors import UserError, one_line, sentence
from pilot_tal.model.load import ABOUT, CARD, GRAPH, LEARNER, VIT

SCHEME = "hf://"
_ADDRESS = re.compile(r"(?P<repo>\w[\w.-]{0,95}/\w[\w.-]{0,95})(@(?P<revision>[\w./-]{1,200}))?", re.ASCII)
_FILES = (ABOUT, LEARNER, VIT, GRAPH, CARD)


def push_export(folder: Path, repo: str, private: bool = True) -> str:
    """Uploads an exported folder as one commit and returns its address, pinned to that commit.

    Args:
        folder: What `export_model` wrote.
        repo: `user/name`; created if it is not there.
        private: Visibility of a repository that is created; one that exists keeps its own.

    Raises:
        UserError: there is no token or no network, or the hub refuses.
    """
    name, revision = _parsed(repo)
    if revision is not None:
        raise UserError(f"--push takes a repository without a revision, such as {name}")
    from huggingface_hub import HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="pilot-tal")
    with _reported(f"cannot push to {name}"):
        api.create_repo(name, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=list(_FILES), commit_message="Upload with pilot-tal"
        )
    return f"{SCHEME}{name}@{commit.oid}"


def fetch_export(address: str) -> Path:
    """Downloads an exported model, or finds it in the hub's cache, and returns its folder.

    Args:
        address: `hf://user/name` or, with a branch, tag or commit, `hf://user/name@revision`.

    Raises:
        UserError: there is no such model, no access to it, or no network.
    """
    name, revision = _parsed(address.removeprefix(SCHEME))
    from huggingface_hub import snapshot_download

    with _reported(f"cannot fetch {SCHEME}{name}"):
        endpoint = os.environ.get("HF_ENDPOINT")
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(_FILES), endpoint=endpoint))


def _parsed(address: str) -> tuple[str, str | None]:
    found = _ADDRESS.fullmatch(address)
    if not found:
        raise UserError(f"a model on the hub is user/name or user/name@revision, got {one_line(address)[:80]!r}")
    return found["repo"], found["revision"]


@contextmanager
def _reported(problem: str) -> Iterator[None]:
    """Turns what the library raises into one sentence with a remedy."""
    from huggingface_hub import errors

    try:
        yield
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{problem}: there is no such revision") from error
    except Exception as error:  # each version has its own errors for a missing network
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, (errors.LocalTokenNotFoundError, errors.RepositoryNotFoundError)) or status in (401, 403):
            reason = (
                "it does not exist, or your token gives no access to it; log in with `hf auth login`, or set HF_TOKEN"
            )
        elif status is not None:
            reason = f"the hub answered {status}; try again later"
        else:
            reason = f"{sentence(error)[:160]}; is there a network connection?"
        raise UserError(f"{problem}: {reason}") from error
