"""torchaudio's networks."""

from typing import Any

import tests.helpers.audio_extension  # noqa: F401  what torchaudio asks for as it is imported

import torchaudio.models  # isort: skip

models: Any = torchaudio.models
