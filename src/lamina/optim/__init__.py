"""Floor 5: optimizers over the update ops, and learning-rate schedules."""

from lamina._lazy import listing
from lamina.optim import schedule
from lamina.optim.adam import Adam, AdamW
from lamina.optim.adaptive import Adadelta, Adagrad, Regularized
from lamina.optim.optimizer import Optimizer
from lamina.optim.rmsprop import RMSprop
from lamina.optim.schedule import Schedule
from lamina.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Optimizer",
    "RMSprop",
    "Regularized",
    "Schedule",
    "schedule",
]
__dir__ = listing(__all__)
