"""ONNX Runtime's own operators (domain com.microsoft), which its optimizer and exporters for it produce.

Their definitions: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""
