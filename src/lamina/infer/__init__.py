"""Floor 6: inference: compiled networks, quantized ones, and networks that serve many threads."""

from typing import TYPE_CHECKING

from lamina._lazy import lazy, listing

if TYPE_CHECKING:
    from lamina.infer.batching import QueueFull
    from lamina.infer.generation import generate
    from lamina.infer.inferer import Inferer
    from lamina.infer.latency import Latency
    from lamina.infer.loading import load
    from lamina.infer.predictor import Predictor
    from lamina.infer.quantization import QuantizedPredictor, quantize
    from lamina.infer.saved import SavedInferer
    from lamina.replay.errors import OtherMachineError, PlanFileError

__all__ = [
    "Inferer",
    "Latency",
    "OtherMachineError",
    "PlanFileError",
    "Predictor",
    "QuantizedPredictor",
    "QueueFull",
    "SavedInferer",
    "generate",
    "load",
    "quantize",
]
__dir__ = listing(__all__)

#: A process that only answers from a saved plan imports nothing related to planning.
__getattr__ = lazy(
    __name__,
    {
        "Inferer": "lamina.infer.inferer",
        "Latency": "lamina.infer.latency",
        "OtherMachineError": "lamina.replay.errors",
        "PlanFileError": "lamina.replay.errors",
        "Predictor": "lamina.infer.predictor",
        "QuantizedPredictor": "lamina.infer.quantization",
        "QueueFull": "lamina.infer.batching",
        "SavedInferer": "lamina.infer.saved",
        "generate": "lamina.infer.generation",
        "load": "lamina.infer.loading",
        "quantize": "lamina.infer.quantization",
    },
)
