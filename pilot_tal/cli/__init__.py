"""The command line, one file per command. Nothing outside this package imports typer, prints or exits."""

from pilot_tal.cli.app import app, main

__all__ = ["app", "main"]
