"""Connectionist temporal classification: loss and gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import integers
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.flags import CTCAlgorithm, CTCGradient, DataType, LossNormalization, Name, flag
from lamina.cudnn.legacy.handles import scratch
from lamina.cudnn.legacy.tensor import TensorDescriptor

Labels = Sequence[int]


class CTCLossSettings(NamedTuple):
    """What `CTCLoss.get` returns."""

    compute_type: DataType
    normalization: LossNormalization
    gradient: CTCGradient
    max_label_length: int


class CTCLoss(Descriptor):
    """The CTC loss of Graves et al. (2006); label 0 is the blank (cudnnSetCTCLossDescriptor_v9).

    Two ways to say the labels: on the host (max_label_length 0; cudnnCTCLoss), or in device memory, which a
    captured graph can read (max_label_length at least that of each label; cudnnCTCLoss_v8).

    Args:
        compute_type: "float32", the only one that cuDNN 9 computes.
        normalization: "softmax": inputs are activations, of which softmax is taken inside; "none": inputs are
            probabilities already. Gradients are those by the activations.
        gradient: of a sequence that is too short for its label: "zero", or "skip" (not written).
        max_label_length: 0, or 1 to 256.
    """

    kind = "CTCLossDescriptor"

    def __init__(
        self,
        *,
        compute_type: Name = "float32",
        normalization: Name = "softmax",
        gradient: Name = "zero",
        max_label_length: int = 0,
    ) -> None:
        super().__init__()
        settings = (
            flag(DataType, compute_type),
            flag(LossNormalization, normalization),
            flag(CTCGradient, gradient),
        )
        call(c.cudnnSetCTCLossDescriptor_v9, self, *settings, max_label_length)

    def get(self) -> CTCLossSettings:
        """Read from cuDNN (cudnnGetCTCLossDescriptor_v9)."""
        return CTCLossSettings(*call(c.cudnnGetCTCLossDescriptor_v9, self))

    def workspace(
        self,
        handle: AnyHandle,
        *,
        probs_desc: TensorDescriptor,
        gradients_desc: TensorDescriptor | None = None,
        labels: Labels = (),
        label_lengths: Labels = (),
        input_lengths: Labels = (),
        algorithm: Name = "deterministic",
    ) -> int:
        """Bytes of scratch for `loss` (cudnnGetCTCLossWorkspaceSize, ..._v8 for labels on the device).

        gradients_desc: left out if only costs are wanted. The labels count with max_label_length 0 only.
        """
        algo = flag(CTCAlgorithm, algorithm)
        if self.get().max_label_length:
            function = c.cudnnGetCTCLossWorkspaceSize_v8
            return call(function, handle, algo, self, probs_desc, gradients_desc)
        return call(
            c.cudnnGetCTCLossWorkspaceSize,
            handle,
            probs_desc,
            gradients_desc,
            _host("labels", labels),
            _host("label_lengths", label_lengths),
            _host("input_lengths", input_lengths),
            algo,
            self,
        )

    def loss(
        self,
        handle: AnyHandle,
        *,
        probs_desc: TensorDescriptor,
        probs: Memory,
        labels: Labels | Memory,
        label_lengths: Labels | Memory,
        input_lengths: Labels | Memory,
        costs: Memory,
        gradients_desc: TensorDescriptor | None = None,
        gradients: Memory = None,
        algorithm: Name = "deterministic",
        workspace: Memory | tuple[Memory, int] = None,
    ) -> None:
        """costs = -log p(labels | probs) per sequence, and gradients (cudnnCTCLoss, cudnnCTCLoss_v8).

        Args:
            probs_desc, probs: T×N×A: steps, sequences, labels with the blank; float32.
            labels: all labels, one sequence after the other; int32.
            label_lengths, input_lengths: N numbers each; int32. All three are sequences of ints if
                max_label_length is 0, else device memory.
            costs: N float32.
            gradients_desc, gradients: shaped as probs; left out, only costs are computed.
            algorithm: "deterministic" or "non_deterministic".
            workspace: scratch; omitted, the handle provides it.
        """
        algo = flag(CTCAlgorithm, algorithm)
        wanted = None if gradients is None else gradients_desc
        names = ("labels", "label_lengths", "input_lengths")
        given: dict[str, Any] = dict(zip(names, (labels, label_lengths, input_lengths), strict=True))
        on_device = self.get().max_label_length > 0
        hosted = {} if on_device else {name: _host(name, value) for name, value in given.items()}
        space = scratch(
            handle,
            workspace,
            lambda: self.workspace(
                handle, probs_desc=probs_desc, gradients_desc=wanted, algorithm=algo, **hosted
            ),
        )
        results = costs, wanted, gradients
        if on_device:
            size = space.nbytes, space.memory
            function = c.cudnnCTCLoss_v8
            call(function, handle, algo, self, probs_desc, probs, *given.values(), *results, *size)
        else:
            call(c.cudnnCTCLoss, handle, probs_desc, probs, *hosted.values(), *results, algo, self, *space)


def _host(name: str, values: Any) -> list[int]:
    """Integers on the host: a sequence or a NumPy array."""
    numbers = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(numbers, (list, tuple)):
        raise TypeError(
            f"{name}: without max_label_length labels are ints on the host, got {type(values).__name__}"
        )
    return list(integers(name, numbers))
