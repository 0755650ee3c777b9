"""torchaudio beside torch's CPU wheel: its networks are there, its compiled library, which needs CUDA, is not."""

import sys
from types import ModuleType
from typing import Any

_extension: Any = ModuleType("torchaudio._extension")
_extension._IS_TORCHAUDIO_EXT_AVAILABLE = False
_extension.fail_if_no_align = lambda function: function
sys.modules.setdefault("torchaudio._extension", _extension)

import torchaudio.models  # noqa: E402

models: Any = torchaudio.models
