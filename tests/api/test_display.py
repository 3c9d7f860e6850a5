"""Progress lines fit the terminal; the end of a status is never cut."""

from rich.console import Console

from pilot_tal.display import NotebookDisplay, TerminalDisplay
from pilot_tal.engine.callbacks import Status

LONG = Status("task 10/20 epoch 10/20", 2.345, 36_000.0)


def test_line_fits_80_columns_and_keeps_the_status():
    display = TerminalDisplay()
    display.console = Console(width=80)
    for name in ("l2p demo_lt tal seed 1993", "coda_prompt imagenetr_lt balanced_softmax seed 1993 tal.lam=0.995"):
        line = display._line(name, str(LONG))
        assert len(line) <= 80 and line.endswith(f": {LONG}") and line.startswith(name[:10])
    assert display._line("l2p demo_lt tal_auto seed 1993", str(Status("task 1/5 epoch 12/20", 2.3, 725.0))).startswith(
        "l2p demo_lt tal_auto seed 1993: task 1/5"
    )


def test_notebook_prints_messages_but_not_routine_ones(capsys):
    display = NotebookDisplay()
    display.message("task 1/5 done", routine=True)
    display.message("warning: a logger is done for")
    printed = capsys.readouterr().err
    assert "a logger is done for" in printed and "task 1/5" not in printed
