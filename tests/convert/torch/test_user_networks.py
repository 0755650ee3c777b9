"""Networks as users write them compute and train as with PyTorch, converted and compiled."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.feature("F099", "F100", "B027"),
    pytest.mark.filterwarnings("ignore:index_reduce:UserWarning"),
    pytest.mark.filterwarnings(
        "ignore:.*autograd.function.Function.* should not be:DeprecationWarning"
    ),  # Dynamo's
]

#: Those that run with the fast tests: what they do is not elsewhere.
FAST = (
    "moe_topk_scatter",
    "gat_scatter_reduce",
    "kv_cache_decoding",
    "feature_pyramid_hooks_captured",
    "ctc_speech",
    "nested_dicts_in_and_dataclass_out",
    "branches_on_numbers",
)
SLOW = (
    "llama_complex_rotary", "gqa_sdpa_rope_cached_buffers", "kv_cache_returned_tuples", "alibi_attention",
    "t5_relative_bias", "swin_like_roll_windows", "moe_capacity_dispatch", "moe_index_add_loop", "gcn_index_add",
    "graph_pool_batch_vector", "mlp_mixer", "gmlp", "perceiver", "capsules", "neural_ode_rk4", "wavenet",
    "tcn_chomp_old_weight_norm", "conv_lstm", "spatial_transformer_deformable", "unet_diffusion", "vae_given_noise",
    "vq_vae_straight_through", "seq2seq_packed_teacher_forcing", "actor_critic_distributions",
    "siamese_triplet_contrastive", "se_cbam", "gan_with_spectral_norm", "fourier_features_fft_mixing",
    "parametrize_symmetric", "checkpoint_reentrant_and_not", "model_output_dataclass",
    "plain_dataclass_and_namedtuple", "dynamic_lengths_pos_embedding", "nn_transformer_full",
    "mamba_selective_scan", "yolo_like_head_decode", "highway_char_cnn_tagger_crf", "where_masks_nonfinite",
    "set_transformer_deepsets_pointnet", "film_hypernetwork_functional", "nerf_ray_marching",
    "bayes_linear_local_reparam_eval", "normalizing_flow_realnvp", "gumbel_hard_and_ste",
    "unfold_fold_local_attention", "embedding_bag_recommender_dlrm", "ema_teacher_momentum_queue",
    "script_like_beam_pointer_network", "conv3d_video_transposed_mixed",
    "orthogonal_and_weight_norm_parametrizations", "functional_call_of_generated_weights",
    "running_buffers_and_counters", "custom_functions_with_context", "einops_patches_and_axial_attention",
    "shape_driven_control_flow_unet", "tied_autoencoder_with_hooks", "views_in_place_and_strided_writes",
    "functional_ensemble_vmap", "cells_in_a_generator", "sparse_moe_sort_dispatch", "forces_by_an_inner_gradient",
)  # fmt: skip
#: Those that have no graph of their own: PyTorch runs what is between the parts.
NAMES = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def made(name: str) -> tuple[Any, Callable[[int], tuple[Any, ...]]]:
    import warnings

    import torch

    from tests.helpers.user_networks import NETWORKS

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the older weight_norm
        net, inputs = NETWORKS[name]()
    return net, inputs


def floats(found: Any) -> list[Any]:
    """The floating point tensors of a result, of whatever structure."""
    from torch.utils import _pytree as pytree

    found = found.to_tuple() if hasattr(found, "to_tuple") else found
    if dataclasses.is_dataclass(found):
        found = [getattr(found, field.name) for field in dataclasses.fields(found)]
    return [y for y in pytree.tree_leaves(found) if hasattr(y, "is_floating_point") and y.is_floating_point()]


def loss_of(found: Any) -> Any:
    import torch

    def weighted(y: Any) -> Any:
        return (y * torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape)).mean()

    return functools.reduce(torch.add, [weighted(y) for y in floats(found) if y.requires_grad])


def losses(net: Any, run: Any, inputs: Any) -> list[float]:
    import torch

    found = []
    rule = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.02)
    for step in range(10):
        rule.zero_grad()
        loss = loss_of(run(*inputs(step)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        rule.step()
        found.append(loss.item())
    return found


# Dynamo looks at results of the graph in front of a CTC loss, which it does not take.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_compiled(name: str) -> None:
    """Ten steps of an ordinary training loop, and the results of inference behind them."""
    import torch

    from tests.helpers.torch_training import compiled

    net, inputs = made(name)
    twin, _ = made(name)
    run = compiled(twin)
    wanted = losses(net, net, inputs)
    assert losses(twin, run, inputs) == pytest.approx(wanted, rel=1e-3, abs=1e-5)
    net.eval(), run.eval()
    with torch.no_grad():
        for y, w in zip(floats(run(*inputs(99))), floats(net(*inputs(99))), strict=True):
            torch.testing.assert_close(y, w, rtol=1e-3, atol=1e-4 * float(w.abs().max()) + 1e-6)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", NAMES)
def test_converted(name: str, mode: str) -> None:
    from lamina.convert.torch import check, from_torch

    net, inputs = made(name)
    net.train(mode == "train")
    found = check(net, from_torch(net, *inputs(0), share=False), *inputs(1))
    assert found.output < 1e-4, found
    assert found.gradient < 1e-3, found
    assert max(found.state.values(), default=0.0) < 1e-4, found


def test_all_are_here() -> None:
    from tests.helpers.user_networks import NETWORKS

    assert sorted(NETWORKS) == sorted([*FAST, *SLOW])
