"""Floor 6: the training step as one compiled graph, evaluation, checkpoints, and the loop around them."""

from typing import TYPE_CHECKING

from lamina._lazy import lazy, listing
from lamina.train import callbacks, metrics
from lamina.train.averaging import AveragedModel, get_ema_avg_fn, get_swa_avg_fn, update_bn
from lamina.train.checkpoint import CheckpointError, Position, load_checkpoint, save_checkpoint
from lamina.train.checkpoint_folder import CheckpointFolder
from lamina.train.errors import DivergedError, ResumeError
from lamina.train.evaluation import Scores, evaluate, predict
from lamina.train.history import Epoch, History
from lamina.train.preemption import Preempted, Preemption
from lamina.train.state import State
from lamina.train.step import Step, train_step

if TYPE_CHECKING:
    from lamina.train.loop import fit

__all__ = [
    "AveragedModel",
    "CheckpointError",
    "CheckpointFolder",
    "DivergedError",
    "Epoch",
    "History",
    "Position",
    "Preempted",
    "Preemption",
    "ResumeError",
    "Scores",
    "State",
    "Step",
    "callbacks",
    "evaluate",
    "fit",
    "get_ema_avg_fn",
    "get_swa_avg_fn",
    "load_checkpoint",
    "metrics",
    "predict",
    "save_checkpoint",
    "train_step",
    "update_bn",
]
__dir__ = listing(__all__)

#: The loop draws its progress bar with rich, whose import costs more than everything else here.
__getattr__ = lazy(__name__, {"fit": "lamina.train.loop"})
