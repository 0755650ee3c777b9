"""Networks of torchaudio and torchvision for sound, video and motion, as small as they come, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

import tests.helpers.audio_extension  # noqa: F401  what torchaudio asks for as it is imported

from torchaudio.models import tacotron2  # isort: skip

from tests.helpers.audio import models as audio
from tests.helpers.vision import models as vision

#: A network and its positional and named inputs.
Example = tuple[Any, tuple[Any, ...], dict[str, Any]]

_WAV: dict[str, Any] = {
    "extractor_mode": "group_norm", "extractor_conv_layer_config": [(16, 10, 5), (16, 3, 2), (16, 2, 2)],
    "extractor_conv_bias": False, "encoder_embed_dim": 32, "encoder_projection_dropout": 0.0,
    "encoder_pos_conv_kernel": 16, "encoder_pos_conv_groups": 4, "encoder_num_layers": 2, "encoder_num_heads": 4,
    "encoder_attention_dropout": 0.0, "encoder_ff_interm_features": 64, "encoder_ff_interm_dropout": 0.0,
    "encoder_dropout": 0.0, "encoder_layer_norm_first": False, "encoder_layer_drop": 0.0,
}  # fmt: skip


def _randn(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _ids(most: int, *shape: int, dtype: Any = torch.int64) -> Any:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def _tacotron2() -> Example:
    net = audio.Tacotron2(
        n_mels=8, n_symbol=20, symbol_embedding_dim=16, encoder_embedding_dim=16, encoder_n_convolution=1,
        decoder_rnn_dim=16, decoder_max_step=6, attention_rnn_dim=16, attention_hidden_dim=16,
        attention_location_n_filter=4, attention_location_kernel_size=3, prenet_dim=8, postnet_n_convolution=2,
        postnet_embedding_dim=8,
    )  # fmt: skip
    functions = ModuleType("functional")  # it drops at a fixed rate, in inference, too
    vars(functions).update(vars(torch.nn.functional), dropout=lambda x, *rates, **options: x)
    tacotron2.F = functions
    return net, (_ids(20, 2, 7), torch.tensor([7, 5]), _randn(2, 8, 6), torch.tensor([6, 4])), {}


def _wavernn() -> Example:
    net = audio.WaveRNN(
        upsample_scales=[2, 3], n_classes=16, hop_length=6, n_res_block=1, n_rnn=16, n_fc=16, kernel_size=3, n_freq=8,
        n_hidden=8, n_output=8,
    )  # fmt: skip
    return net, (_randn(2, 1, 30), _randn(2, 1, 8, 7)), {}


def _hubert() -> Example:
    more: dict[str, Any] = {
        "mask_prob": 0.0, "mask_selection": "static", "mask_other": 0.0, "mask_length": 2, "no_mask_overlap": False,
        "mask_min_space": 1, "mask_channel_prob": 0.0, "mask_channel_selection": "static", "mask_channel_other": 0.0,
        "mask_channel_length": 2, "no_mask_channel_overlap": False, "mask_channel_min_space": 1, "skip_masked": False,
        "skip_nomask": False, "num_classes": 10, "final_dim": 16, "feature_grad_mult": None,
    }  # fmt: skip
    return (
        audio.hubert_pretrain_model(**_WAV, **more).wav2vec2,
        (_randn(2, 2000), torch.tensor([2000, 1600])),
        {},
    )


def _wavlm() -> Example:
    net = audio.wavlm_model(**_WAV, encoder_num_buckets=8, encoder_max_distance=20, aux_num_out=None)
    return net, (_randn(2, 2000),), {}


def _rnnt() -> Example:
    net = audio.emformer_rnnt_model(
        input_dim=8, encoding_dim=16, num_symbols=12, segment_length=4, right_context_length=1,
        time_reduction_input_dim=8, time_reduction_stride=1, transformer_num_heads=2, transformer_ffn_dim=16,
        transformer_num_layers=1, transformer_dropout=0.0, transformer_activation="relu",
        transformer_left_context_length=4, transformer_max_memory_size=0,
        transformer_weight_init_scale_strategy="depthwise", transformer_tanh_on_mem=True, symbol_embedding_dim=8,
        num_lstm_layers=1, lstm_layer_norm=True, lstm_layer_norm_epsilon=1e-3, lstm_dropout=0.0,
    )  # fmt: skip
    lengths = torch.tensor([8, 7], dtype=torch.int32), torch.tensor([4, 3], dtype=torch.int32)
    return net, (_randn(2, 9, 8), lengths[0], _ids(12, 2, 4, dtype=torch.int32), lengths[1]), {}


def _squim() -> Example:
    net = audio.squim_objective_model(
        feat_dim=16,
        win_len=8,
        d_model=16,
        nhead=4,
        hidden_dim=16,
        num_blocks=1,
        rnn_type="LSTM",
        chunk_size=7,
    )
    return net, (_randn(2, 800),), {}


def _conv_tasnet() -> Example:
    net = audio.ConvTasNet(
        num_sources=2, enc_kernel_size=8, enc_num_feats=16, msk_kernel_size=3, msk_num_feats=8,
        msk_num_hidden_feats=16, msk_num_layers=2, msk_num_stacks=2,
    )  # fmt: skip
    return net, (_randn(2, 1, 160),), {}


SOUND: dict[str, Callable[[], Example]] = {
    "Tacotron 2": _tacotron2,
    "WaveRNN": _wavernn,
    "Emformer": lambda: (audio.Emformer(16, 4, 32, 2, 4, right_context_length=1),
                         (_randn(2, 9, 16), torch.tensor([8, 6])), {}),
    "Conv-TasNet": _conv_tasnet,
    "DeepSpeech": lambda: (audio.DeepSpeech(n_feature=8, n_hidden=16, n_class=10), (_randn(2, 1, 12, 8),), {}),
    "Wav2Letter": lambda: (audio.Wav2Letter(num_classes=10, input_type="mfcc", num_features=8),
                           (_randn(2, 8, 400),), {}),
    "HuBERT": _hubert,
    "WavLM": _wavlm,
    "RNN-T": _rnnt,
    "SQUIM": _squim,
    "Hybrid Demucs": lambda: (audio.HDemucs(sources=["a", "b"], audio_channels=1, channels=8),
                              (_randn(1, 1, 44100),), {}),
}  # fmt: skip


def _video(name: str, frames: int = 4, size: int = 32) -> Example:
    net = getattr(vision.video, name)(weights=None, num_classes=5)
    return net, (_randn(2, 3, frames, size, size),), {}


#: Those that take images of their own sizes, and what these are.
MOVING: dict[str, Callable[[], Example]] = {
    **{name: lambda name=name: _video(name) for name in ("r3d_18", "mc3_18", "r2plus1d_18", "swin3d_t")},
    "s3d": lambda: _video("s3d", 16, 224),
    "mvit_v2_s": lambda: _video("mvit_v2_s", 16, 224),
    "raft_small": lambda: (vision.optical_flow.raft_small(weights=None),
                           (_randn(1, 3, 128, 128), _randn(1, 3, 128, 128)), {"num_flow_updates": 2}),
}  # fmt: skip
