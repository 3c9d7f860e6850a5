"""The one exception a user is meant to read, and "did you mean" for unknown names."""

import difflib
from collections.abc import Iterable


class PilotTalError(ValueError):
    """A sentence for the user: what is wrong, what is allowed, what to do. The command line prints it bare."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None when nothing is close; `lam` means `tal.lam`, `lr` means `init_lr`."""
    names = sorted(known)
    longer = [full for full in names if full.endswith((f".{name.lower()}", f"_{name.lower()}"))]
    if longer:
        return longer[0]
    matches = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    return matches[0] if matches else None


def unknown_name(kind: str, name: str, known: Iterable[str]) -> PilotTalError:
    """The error for a name that is not known, with the nearest one and the whole list."""
    names = sorted(known)
    guess = nearest(name, names)
    hint = f"did you mean {guess!r}? " if guess else ""
    return PilotTalError(f"unknown {kind} {name!r}: {hint}known: {', '.join(names)}")
