"""Replaces chosen cross-entropies of a module by a loss, and restores them."""

import contextlib
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from torch import Tensor

from data_lt.errors import UserError
from pilot_tal.upstream.seams import LocatedSite

_ABSENT = object()
Loss = Callable[[Tensor, Tensor], Tensor]


class Patches(contextlib.ExitStack):
    """Attributes that are set until the context ends."""

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Sets `owner.name`, on the instance or module itself, until the context ends."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        if before is _ABSENT:
            self.callback(delattr, owner, name)
        else:
            self.callback(setattr, owner, name, before)


class SwappedFunctional:
    """Stands for `torch.nn.functional` in one module: all as before but the cross-entropies at the swapped sites.

    A call is known by the line it stands on, which `check_seams` has located in the same file before.
    """

    def __init__(self, functional: ModuleType, sites: Iterable[LocatedSite], loss: Loss):
        self._functional, self._loss = functional, loss
        self._sites = {
            (located.site.function.rpartition(".")[2], line): located.site
            for located in sites
            for line in range(located.first_line, located.last_line + 1)
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functional, name)

    def cross_entropy(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss at a swapped site, torch's own cross-entropy at the others."""
        caller = sys._getframe(1)
        site = self._sites.get((caller.f_code.co_name, caller.f_lineno))
        if site is None:
            raise UserError(
                f"cross_entropy was called in {caller.f_code.co_name}, line {caller.f_lineno} of "
                f"{caller.f_code.co_filename}, which is none of the known call sites"
            )
        return (self._loss if site.swap else self._functional.cross_entropy)(*args, **kwargs)


def swap(patches: Patches, module: ModuleType, sites: Iterable[LocatedSite], loss: Loss) -> None:
    """Lets `loss` answer the swapped sites of `module` until the context of `patches` ends."""
    patches.set(module, "F", SwappedFunctional(module.F, sites, loss))
