"""Parameters that are trained as long as those of PyTorch's module, whose memory they share, are trained."""

from __future__ import annotations

from typing import Any

import torch

from lamina.nn import Parameter
from lamina.nn.parameter import settings_changed


class FollowingParameter(Parameter):
    """A parameter on the memory of PyTorch's: `requires_grad` is as it was changed last, here or there.

    PyTorch does not notify changes (`module.requires_grad_(False)`): they are seen when `requires_grad` is read.
    Copies and unpickled ones have memory of their own, and follow none.
    """

    __slots__ = ("_followed", "_seen")
    _followed: torch.nn.Parameter
    _seen: bool

    def __init__(self, data: Any, followed: torch.nn.Parameter) -> None:
        super().__init__(data, followed.requires_grad)
        self._followed, self._seen = followed, followed.requires_grad

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained."""
        try:
            now = self._followed.requires_grad  # quickly: training steps read it in each call
        except AttributeError:  # a copy
            return not self._frozen
        if now is not self._seen:
            self.requires_grad = now
        return not self._frozen

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if (followed := getattr(self, "_followed", None)) is not None:
            self._seen = followed.requires_grad
        self._frozen = not value
        settings_changed()
