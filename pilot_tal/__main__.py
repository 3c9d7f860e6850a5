"""`python -m pilot_tal`."""

from pilot_tal.cli import main

main()
