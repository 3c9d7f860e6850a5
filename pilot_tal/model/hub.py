"""Exported models on the Hugging Face hub: pushed with their checksums, fetched by address and revision."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_lt.errors import UserError, one_line
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
    except (errors.LocalTokenNotFoundError, errors.GatedRepoError) as error:
        raise UserError(f"{problem}: {_NO_TOKEN}") from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{problem}: there is no such revision") from error
    except errors.LocalEntryNotFoundError as error:
        raise UserError(f"{problem}: it is not in the cache, and the hub cannot be reached; {_NETWORK}") from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403) or isinstance(error, errors.RepositoryNotFoundError):
            raise UserError(f"{problem}: it does not exist, or {_NO_TOKEN}") from error
        raise UserError(f"{problem}: the hub answered {status}; try again later") from error
    except Exception as error:  # no network: each version has its own error for it
        if not isinstance(error, (OSError, ValueError, RuntimeError)) and not type(error).__module__.startswith("http"):
            raise
        reason = one_line((str(error).strip().splitlines() or [type(error).__name__])[0])[:160]
        raise UserError(f"{problem}: {reason}; {_NETWORK}") from error


_NO_TOKEN = "your token gives no access to it; log in with `hf auth login`, or set HF_TOKEN"

_NETWORK = "is there a network connection?"
