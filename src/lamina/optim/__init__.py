"""Floor 5: optimizers over the update cards of ops, and learning-rate schedules."""

from lamina.optim import schedule
from lamina.optim.adam import Adam, AdamW
from lamina.optim.optimizer import Optimizer
from lamina.optim.schedule import Schedule
from lamina.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "Schedule", "schedule"]
