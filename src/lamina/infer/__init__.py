"""Floor 6: inference: compiled networks, quantized ones."""

from lamina.infer.predictor import Predictor
from lamina.infer.quantization import QuantizedPredictor, quantize

__all__ = ["Predictor", "QuantizedPredictor", "quantize"]
