"""Floor 5: optimizers on top of the update ops, and learning-rate schedules."""

from lamina._lazy import lazy, listing
from lamina.optim import lr_scheduler, schedule
from lamina.optim.adafactor import Adafactor
from lamina.optim.adam import Adam, Adamax, AdamW, NAdam, RAdam
from lamina.optim.adaptive import Adadelta, Adagrad, Regularized
from lamina.optim.asgd import ASGD
from lamina.optim.groups import ParameterGroup
from lamina.optim.layerwise import LAMB, LARS
from lamina.optim.lbfgs import LBFGS
from lamina.optim.muon import Muon
from lamina.optim.optimizer import Optimizer
from lamina.optim.rmsprop import RMSprop
from lamina.optim.schedule import Schedule
from lamina.optim.sgd import SGD
from lamina.optim.sign import Lion, Rprop

__all__ = [
    "ASGD",
    "LAMB",
    "LARS",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lion",
    "Muon",
    "NAdam",
    "Optimizer",
    "ParameterGroup",
    "RAdam",
    "RMSprop",
    "Regularized",
    "Rprop",
    "Schedule",
    "lr_scheduler",
    "schedule",
]
__dir__ = listing(__all__)
__getattr__ = lazy(
    __name__,
    {},
    instead={
        "swa_utils": "AveragedModel, get_ema_avg_fn and update_bn are lamina.train's, SWALR is in "
        "lamina.optim.lr_scheduler",
    },
)
