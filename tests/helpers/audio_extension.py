"""torchaudio beside torch's CPU wheel: its compiled library needs CUDA, and importing torchaudio fails without it.

The replacement is installed before torchaudio is imported, which transformers does.
"""

import sys
from types import ModuleType
from typing import Any

_extension: Any = ModuleType("torchaudio._extension")
_extension._IS_TORCHAUDIO_EXT_AVAILABLE = False
_extension.fail_if_no_align = lambda function: function
sys.modules.setdefault("torchaudio._extension", _extension)
