"""The command line, one file per command. Nothing outside this package imports typer, prints or exits."""

import signal


def main() -> None:
    """Runs the command line; Ctrl-C while it is imported ends it without a traceback."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pilot_tal.cli import app

    signal.signal(signal.SIGINT, before)
    app.main()
