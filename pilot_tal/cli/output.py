"""Standard output and standard error: any terminal, any encoding, any file name."""

import codecs
import contextlib
import errno
import os
import sys

from data_lt.errors import printable

_ASCII = {"−": "-", "–": "-", "—": "-", "·": "*", "…": "...", "×": "x", "±": "+-", "→": "->", "≤": "<=", "≥": ">="}
_ASCII |= {"ρ": "rho", "α": "alpha", "λ": "lambda", "“": '"', "”": '"', "’": "'"}


def echo(text: str, err: bool = False) -> None:
    """Prints lines, with control characters escaped so that no file name controls a terminal."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr if err else sys.stdout, flush=True)


def accept_any_text() -> None:
    """Lets the streams replace characters that their encoding lacks."""
    codecs.register_error("pilot_tal", _replaced)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # not a text stream of a process
            stream.reconfigure(errors="pilot_tal")  # type: ignore[union-attr]


def is_output_error(error: BaseException) -> bool:
    """Whether an error comes from a stream, not from a file: a full disk, or a reader that has gone."""
    return isinstance(error, OSError) and error.filename is None and error.errno in (errno.ENOSPC, errno.EPIPE)


def discard_output() -> None:
    """Sends what is still buffered to nowhere, or Python would fail again at its end."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                os.dup2(nowhere, stream.fileno())


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII.get(letter, "?") for letter in lacking), error.end
