"""TAL with a memory measured in epochs."""

from typing import Annotated

from pilot_tal.losses.base import LOSSES
from pilot_tal.losses.tal import MEMORY_EPOCHS, TAL
from pilot_tal.losses.tal_math import UPDATES
from pilot_tal.schema import Rule


@LOSSES.register
class AutoTAL(TAL):
    """TAL with `lam="auto"` and `start="steady"`: it starts as cross-entropy, and Q remembers k epochs of any task."""

    name, title = "tal_auto", "TAL-auto"
    recommended = "class counts not known in advance"

    def __init__(
        self,
        memory_epochs: Annotated[float, Rule("epochs Q remembers", above=0, high=1e6)] = MEMORY_EPOCHS,
        r: Annotated[float, Rule("exponent of the weight", above=0, high=1000)] = 1.0,
        update: Annotated[str, Rule("Algorithm 1, or the authors' code", choices=UPDATES)] = "paper",
        scope: Annotated[str, Rule("which classes calibrate α", choices=("task", "seen"))] = "task",
        eps: Annotated[float, Rule("floor of the weight", above=0, below=1)] = 1e-8,
    ):
        super().__init__(
            lam="auto", memory_epochs=memory_epochs, start="steady", r=r, update=update, scope=scope, eps=eps
        )
