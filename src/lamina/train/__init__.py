"""Floor 6: the training step as one compiled graph, evaluation, checkpoints, and the loop around them."""

from typing import TYPE_CHECKING

from lamina._lazy import lazy, listing
from lamina.train.checkpoint import CheckpointError, Position, load_checkpoint, save_checkpoint
from lamina.train.errors import DivergedError, ResumeError
from lamina.train.evaluation import Scores, evaluate
from lamina.train.step import State, Step, train_step

if TYPE_CHECKING:
    from lamina.train.loop import Epoch, History, fit

__all__ = [
    "CheckpointError",
    "DivergedError",
    "Epoch",
    "History",
    "Position",
    "ResumeError",
    "Scores",
    "State",
    "Step",
    "evaluate",
    "fit",
    "load_checkpoint",
    "save_checkpoint",
    "train_step",
]
__dir__ = listing(__all__)

#: The loop draws its progress bar with rich, which costs more to import than everything else here.
__getattr__ = lazy(__name__, dict.fromkeys(("Epoch", "History", "fit"), "lamina.train.loop"))
