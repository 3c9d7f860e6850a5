"""TAL under the losses' contract; the loss itself is `pilot_tal/tal.py`."""

from pilot_tal.losses.registry import register
from pilot_tal.tal import TAL


@register("tal")
class TaskTAL(TAL):
    """TAL whose number of classes comes with `begin_task`. It needs no prior: the class counts are not used."""

    def __init__(
        self,
        lam: float = 0.995,
        r: float = 1.0,
        update: str = "paper",
        start: str = "zero",
        scope: str = "task",
        eps: float = 1e-8,
    ):
        super().__init__(2, lam=lam, r=r, update=update, start=start, scope=scope, eps=eps)
