"""Floor 6: inference: compiled networks, quantized ones."""

from lamina._lazy import listing
from lamina.infer.predictor import Predictor
from lamina.infer.quantization import QuantizedPredictor, quantize

__all__ = ["Predictor", "QuantizedPredictor", "quantize"]
__dir__ = listing(__all__)
