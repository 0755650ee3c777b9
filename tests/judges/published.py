"""Keys and shapes of networks as other libraries publish them.

    python -m tests.judges.published write     # needs transformers

writes `published_table.json`: for each library's class with its arguments the shapes of its state by key. What has no
transformers is held by the table; where it is there, a slow test makes the table anew.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("published_table.json")

GPT2 = {"vocab_size": 50, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 4}
BERT = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 24,
}  # fmt: skip
#: Classes of transformers and the arguments of their configurations.
NETWORKS: dict[str, dict[str, Any]] = {
    "GPT2Model": GPT2,
    "GPT2LMHeadModel": GPT2,
    "BertModel": BERT,
    "BertForMaskedLM": BERT,
}


def transformers_network(name: str) -> Any:
    """A network of transformers, its attention as written out there."""
    import tests.helpers.vision  # noqa: F401, I001  transformers imports torchvision
    import transformers

    arguments = NETWORKS[name]
    kind = "GPT2Config" if name.startswith("GPT2") else "BertConfig"
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    config = getattr(transformers, kind)(**arguments, **tokens, attn_implementation="eager")
    return getattr(transformers, name)(config)


def measured() -> dict[str, dict[str, list[int]]]:
    """The table as transformers says it."""
    return {
        name: {key: list(v.shape) for key, v in transformers_network(name).state_dict().items()}
        for name in NETWORKS
    }


def table() -> dict[str, dict[str, tuple[int, ...]]]:
    """The table as it is kept."""
    held = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: {key: tuple(shape) for key, shape in state.items()} for name, state in held.items()}


if __name__ == "__main__":
    assert sys.argv[1:] == ["write"], "python -m tests.judges.published write"
    rows = ",\n".join(
        f' "{name}": {{\n' + ",\n".join(f'  "{k}": {s}' for k, s in state.items()) + "\n }"
        for name, state in measured().items()
    )
    TABLE.write_text("{\n" + rows + "\n}\n", encoding="utf-8")
