"""Converted language models of transformers generate the tokens of `model.generate`."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

import lamina as lm
from lamina import infer
from lamina.convert import from_torch, to_torch
from tests.helpers import audio_extension, vision  # noqa: F401  # before transformers

tf: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

ENDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
SIZES: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, **ENDS,
}  # fmt: skip
GPT2: dict[str, Any] = {"vocab_size": 31, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, **ENDS}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "positions are learned": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "heads share keys": ("LlamaConfig", "LlamaForCausalLM", SIZES),
    "layers see a window": ("MistralConfig", "MistralForCausalLM", {**SIZES, "sliding_window": 4}),
    "positions are distances": (
        "BloomConfig",
        "BloomForCausalLM",
        {"vocab_size": 31, "hidden_size": 16, "n_layer": 2, "n_head": 2, **ENDS},
    ),
    "layers are recurrent": (
        "MambaConfig",
        "MambaForCausalLM",
        {"vocab_size": 31, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, **ENDS},
    ),
    "tokens have experts": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {**SIZES, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": None},
    ),
}
PROMPT = np.array([[0, 0, 7, 3, 9], [4, 8, 12, 16, 20]])
MASK = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


def model(kind: str) -> Any:
    config, name, options = MODELS[kind]
    torch.manual_seed(0)
    made = getattr(tf, name)(getattr(tf, config)(**options)).eval()
    with torch.no_grad():
        for p in made.parameters():  # so that logits differ
            if p.ndim > 1:
                p.mul_(5)
    return made


def theirs(source: Any, prompt: Any, count: int, mask: Any = None, **options: Any) -> Any:
    given = torch.from_numpy(prompt)
    mask = torch.ones_like(given) if mask is None else torch.from_numpy(mask)
    found = source.generate(
        given, attention_mask=mask, max_new_tokens=count, **{"do_sample": False, **options}
    )
    return found.numpy()


@pytest.mark.parametrize("kind", MODELS)
def test_tokens_are_those_of_pytorch(kind: str) -> None:
    source = model(kind)
    net = from_torch(source)
    for mask in (MASK, None):
        np.testing.assert_array_equal(
            infer.generate(net, PROMPT, 7, attention_mask=mask), theirs(source, PROMPT, 7, mask)
        )
    np.testing.assert_array_equal(
        infer.generate(net, PROMPT[::-1], 7), theirs(source, PROMPT[::-1].copy(), 7)
    )


@pytest.mark.parametrize(
    "options",
    [
        {"eos_token_id": list(range(0, 31, 3))},
        {"eos_token_id": list(range(0, 31, 3)), "min_new_tokens": 4},
        {"repetition_penalty": 1.7},
    ],
)
def test_rules_are_those_of_pytorch(options: dict[str, Any]) -> None:
    source = model("heads share keys")
    found = infer.generate(from_torch(source), PROMPT[1:], 9, **options)
    np.testing.assert_array_equal(found, theirs(source, PROMPT[1:], 9, **options))


def test_the_end_is_that_of_the_configuration() -> None:
    source = model("heads share keys")
    plain = theirs(source, PROMPT[1:], 9)
    source.generation_config.eos_token_id = int(plain[0, 7])
    net = from_torch(source)
    np.testing.assert_array_equal(infer.generate(net, PROMPT[1:], 9), theirs(source, PROMPT[1:], 9))
    np.testing.assert_array_equal(infer.generate(net, PROMPT[1:], 9, eos_token_id=()), plain)


def test_parameters_that_pytorch_trains_count_in_the_next_text() -> None:
    source = model("heads share keys")
    net = from_torch(source)
    infer.generate(net, PROMPT, 7)
    with torch.no_grad():
        for p in source.parameters():
            p.copy_(p.flip(0))
    np.testing.assert_array_equal(infer.generate(net, PROMPT, 7), theirs(source, PROMPT, 7))


def test_a_trained_network_generates_as_it_does_in_pytorch() -> None:
    net = from_torch(model("heads share keys").train())
    step = lm.train_step(net, lambda out, _: out.loss, lm.optim.SGD(lr=0.5))
    before = infer.generate(net, PROMPT, 7)
    ids = PROMPT[1:]
    first, *_, last = (float(step({"input_ids": ids, "labels": ids}, ids).item()) for _ in range(5))
    assert last < first
    after = infer.generate(net, PROMPT, 7)
    assert (after != before).any()
    np.testing.assert_array_equal(after, theirs(to_torch(net).eval(), PROMPT, 7))


def test_the_step_runs_uncompiled_too() -> None:
    source = model("positions are learned")
    net = from_torch(source).eval()
    cache, text, given = net.empty_cache(2, 8), PROMPT, PROMPT
    for _ in range(3):
        logits, cache = net.continued(given, cache, np.array(text.shape[1] - given.shape[1]))
        given = logits.numpy()[:, -1].argmax(1)[:, None]
        text = np.concatenate([text, given], 1)
    np.testing.assert_array_equal(text, theirs(source, PROMPT, 3))


def test_a_network_that_generated_is_let_go() -> None:
    net = from_torch(model("positions are learned"))
    infer.generate(net, PROMPT, 2)
    there = weakref.ref(net)
    del net
    gc.collect()
    assert there() is None


def test_networks_without_a_cache_are_refused() -> None:
    with pytest.raises(TypeError, match="Linear.forward takes no cache"):
        infer.generate(from_torch(torch.nn.Linear(2, 2)), PROMPT, 2)


def test_a_model_that_computes_something_else_with_a_cache_of_fixed_size_is_refused() -> None:
    config = tf.GPTNeoConfig(
        vocab_size=31, hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]],
        window_size=4, max_position_embeddings=32, intermediate_size=16, **ENDS,
    )  # fmt: skip
    with pytest.raises(
        TypeError, match="GPTNeoForCausalLM computes something else with transformers' cache of fixed"
    ):
        infer.generate(from_torch(tf.GPTNeoForCausalLM(config).eval()), PROMPT, 2)


def test_models_with_an_encoder_write_what_they_write_in_pytorch() -> None:
    config = tf.T5Config(
        vocab_size=31, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=2, decoder_start_token_id=0,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    source = tf.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for p in source.parameters():
            p.mul_(3)
    net = from_torch(source)
    for prompt in (PROMPT, PROMPT[::-1].copy()):
        np.testing.assert_array_equal(infer.generate(net, prompt, 6), theirs(source, prompt, 6))
    padded = MASK[:, ::-1].copy()  # behind the prompt
    np.testing.assert_array_equal(
        infer.generate(net, PROMPT, 6, attention_mask=padded), theirs(source, PROMPT, 6, padded)
    )
    begun = infer.generate(net, PROMPT, 3, decoder_input_ids=[[0, 5], [0, 7]])
    expected = theirs(source, PROMPT, 3, decoder_input_ids=torch.tensor([[0, 5], [0, 7]]))
    np.testing.assert_array_equal(begun, expected)
    source.generation_config.decoder_start_token_id = None
    with pytest.raises(ValueError, match="no decoder_start_token_id: pass decoder_input_ids"):
        infer.generate(net, PROMPT, 3)
