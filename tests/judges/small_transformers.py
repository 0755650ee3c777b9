"""Networks of transformers that nobody tried before: one of each kind, small, with random weights.

`KINDS` has for each its configuration, its class, the sizes and what it is given; `made` makes it.
"""

from __future__ import annotations

from typing import Any

#: Sizes that most configurations know; what one does not know it keeps as an attribute that nobody reads.
SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 50,
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "use_cache": False,
}  # fmt: skip
DECODER: dict[str, Any] = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
#: Encoders and decoders of the family of BART.
BOTH: dict[str, Any] = {
    "vocab_size": 50, "d_model": 32, "use_cache": False, "decoder_start_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 0, "pad_token_id": 0, "forced_eos_token_id": 0,
    **{f"{part}_{name}": n for part in ("encoder", "decoder")
       for name, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64), ("layerdrop", 0.0))},
}  # fmt: skip
PICTURE: dict[str, Any] = {**SMALL, "image_size": 32, "patch_size": 8}
#: Four stages.
STAGES: dict[str, Any] = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}
BACKBONE: dict[str, Any] = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
    "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
SOUND: dict[str, Any] = {
    **SMALL, "conv_dim": [8, 8, 8], "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 3], "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "layerdrop": 0.0, "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0, "apply_spec_augment": False,
}  # fmt: skip
DETR: dict[str, Any] = {
    "d_model": 32, "num_queries": 5, "num_labels": 4, "encoder_layers": 1, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    "backbone_config": {**BACKBONE, "out_features": ["stage4"]}, "use_pretrained_backbone": False, "backbone": None,
    "use_timm_backbone": False,
}  # fmt: skip
SERIES: dict[str, Any] = {
    "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 1, "d_model": 16,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "input_size": 1,
    "use_cache": False, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}  # fmt: skip

#: What a network is given -> its inputs, made by `_given`.
KINDS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    # encoders of text
    "ELECTRA": ("ElectraConfig", "ElectraForPreTraining", {**SMALL, "embedding_size": 16}, "text"),
    "ALBERT": ("AlbertConfig", "AlbertForMaskedLM", {**SMALL, "embedding_size": 16}, "text"),
    "DeBERTa": ("DebertaConfig", "DebertaModel", {
        **SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
    }, "text"),
    "DeBERTa-v2": ("DebertaV2Config", "DebertaV2ForTokenClassification", {
        **SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4,
    }, "text"),
    "RoBERTa": ("RobertaConfig", "RobertaForSequenceClassification", {
        **SMALL, "max_position_embeddings": 20,
    }, "text"),
    "MPNet": ("MPNetConfig", "MPNetModel", {**SMALL, "max_position_embeddings": 20}, "text"),
    "MobileBERT": ("MobileBertConfig", "MobileBertModel", {
        **SMALL, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16,
    }, "text"),
    "SqueezeBERT": ("SqueezeBertConfig", "SqueezeBertModel", {**SMALL, "embedding_size": 32}, "text"),
    "FNet": ("FNetConfig", "FNetModel", SMALL, "ids"),
    "RoFormer": ("RoFormerConfig", "RoFormerModel", {**SMALL, "embedding_size": 16, "max_position_embeddings": 16},
                 "text"),
    "ConvBERT": ("ConvBertConfig", "ConvBertModel", {**SMALL, "embedding_size": 16, "head_ratio": 2}, "text"),
    "Funnel": ("FunnelConfig", "FunnelModel", {"vocab_size": 50, "block_sizes": [1, 1], "num_decoder_layers": 1,
               "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64}, "text"),
    "Longformer": ("LongformerConfig", "LongformerModel", {**SMALL, "attention_window": 4,
                   "max_position_embeddings": 20}, "eight"),
    "BigBird": ("BigBirdConfig", "BigBirdModel", {**SMALL, "attention_type": "original_full"}, "text"),
    "ModernBERT": ("ModernBertConfig", "ModernBertModel", {**SMALL, "cls_token_id": 0, "sep_token_id": 0,
                   "global_attn_every_n_layers": 2, "local_attention": 4}, "text"),
    "ESM": ("EsmConfig", "EsmModel", {**SMALL, "position_embedding_type": "rotary", "mask_token_id": 1}, "text"),
    "LayoutLM": ("LayoutLMConfig", "LayoutLMModel", SMALL, "text"),
    "XLNet": ("XLNetConfig", "XLNetModel", {
        "vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64,
    }, "text"),
    "Perceiver": ("PerceiverConfig", "PerceiverModel", {
        "num_latents": 4, "d_latents": 16, "d_model": 12, "num_blocks": 1, "num_self_attends_per_block": 2,
        "num_self_attention_heads": 4, "num_cross_attention_heads": 4,
    }, "vectors"),
    # decoders of text
    "Qwen2": ("Qwen2Config", "Qwen2ForCausalLM", DECODER, "text"),
    "Qwen3": ("Qwen3Config", "Qwen3ForCausalLM", DECODER, "text"),
    "Qwen2-MoE": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", {**DECODER, "num_experts": 4, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 16, "shared_expert_intermediate_size": 32}, "text"),
    "OLMoE": ("OlmoeConfig", "OlmoeForCausalLM", {**DECODER, "num_experts": 4, "num_experts_per_tok": 2}, "text"),
    "DeepSeek-V2": ("DeepseekV2Config", "DeepseekV2ForCausalLM", {
        **SMALL, "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
    }, "text"),
    "DeepSeek-V3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", {
        **SMALL, "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
    }, "text"),
    "Gemma": ("GemmaConfig", "GemmaForCausalLM", DECODER, "text"),
    "Gemma 2": ("Gemma2Config", "Gemma2ForCausalLM", {**DECODER, "sliding_window": 4}, "text"),
    "Phi": ("PhiConfig", "PhiForCausalLM", SMALL, "text"),
    "Phi-3": ("Phi3Config", "Phi3ForCausalLM", DECODER, "text"),
    "Falcon": ("FalconConfig", "FalconForCausalLM", SMALL, "text"),
    "BLOOM": ("BloomConfig", "BloomForCausalLM", {**SMALL, "n_layer": 2, "n_head": 4}, "text"),
    "OPT": ("OPTConfig", "OPTForCausalLM", {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 16}, "text"),
    "GPT-NeoX": ("GPTNeoXConfig", "GPTNeoXForCausalLM", SMALL, "text"),
    "GPT-Neo": ("GPTNeoConfig", "GPTNeoForCausalLM", {**SMALL, "num_layers": 2, "num_heads": 4, "window_size": 4,
                "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 16}, "text"),
    "GPT-J": ("GPTJConfig", "GPTJForCausalLM", {**SMALL, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
              "text"),
    "CodeGen": ("CodeGenConfig", "CodeGenForCausalLM", {**SMALL, "n_embd": 32, "n_layer": 2, "n_head": 4,
                "rotary_dim": 4}, "text"),
    "CTRL": ("CTRLConfig", "CTRLModel", {**SMALL, "n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 64}, "text"),
    "MPT": ("MptConfig", "MptForCausalLM", {**SMALL, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 16},
            "text"),
    "StableLM": ("StableLmConfig", "StableLmForCausalLM", DECODER, "text"),
    "Cohere": ("CohereConfig", "CohereForCausalLM", DECODER, "text"),
    "Granite": ("GraniteConfig", "GraniteForCausalLM", DECODER, "text"),
    "OLMo": ("OlmoConfig", "OlmoForCausalLM", DECODER, "text"),
    "Nemotron": ("NemotronConfig", "NemotronForCausalLM", DECODER, "text"),
    "XGLM": ("XGLMConfig", "XGLMForCausalLM", {**SMALL, "d_model": 32, "num_layers": 2, "attention_heads": 4,
             "ffn_dim": 64}, "text"),
    "RWKV": ("RwkvConfig", "RwkvForCausalLM", {**SMALL, "attention_hidden_size": 32}, "ids"),
    "Mamba-2": ("Mamba2Config", "Mamba2ForCausalLM", {**SMALL, "num_heads": 8, "head_dim": 8, "state_size": 8,
                "n_groups": 2, "chunk_size": 4}, "ids"),
    "RecurrentGemma": ("RecurrentGemmaConfig", "RecurrentGemmaForCausalLM", {**DECODER, "lru_width": 32,
                       "num_hidden_layers": 3}, "text"),
    # from text to text
    "Marian": ("MarianConfig", "MarianMTModel", BOTH, "pairs"),
    "Pegasus": ("PegasusConfig", "PegasusForConditionalGeneration", BOTH, "pairs"),
    "LED": ("LEDConfig", "LEDForConditionalGeneration", {**BOTH, "attention_window": 4}, "pairs of eight"),
    "Switch": ("SwitchTransformersConfig", "SwitchTransformersForConditionalGeneration", {
        "vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "num_experts": 2,
        "use_cache": False, "decoder_start_token_id": 0, "router_jitter_noise": 0.0,
    }, "pairs"),
    # images
    "DETR": ("DetrConfig", "DetrForObjectDetection", DETR, "image"),
    "Conditional DETR": ("ConditionalDetrConfig", "ConditionalDetrForObjectDetection", DETR, "image"),
    "Deformable DETR": ("DeformableDetrConfig", "DeformableDetrForObjectDetection", {
        **DETR, "backbone_config": BACKBONE, "num_feature_levels": 3,
    }, "image"),
    "Table Transformer": ("TableTransformerConfig", "TableTransformerForObjectDetection", DETR, "image"),
    "YOLOS": ("YolosConfig", "YolosForObjectDetection", {**PICTURE, "image_size": [32, 32],
              "num_detection_tokens": 3}, "image"),
    "Swin": ("SwinConfig", "SwinForImageClassification", {"image_size": 32, "patch_size": 2, "embed_dim": 8,
             "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}, "image"),
    "Swin v2": ("Swinv2Config", "Swinv2ForImageClassification", {"image_size": 32, "patch_size": 2, "embed_dim": 8,
                "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}, "image"),
    "Swin2SR": ("Swin2SRConfig", "Swin2SRForImageSuperResolution", {"image_size": 16, "embed_dim": 8,
                "depths": [2], "num_heads": [2], "window_size": 4}, "image"),
    "ConvNeXt": ("ConvNextConfig", "ConvNextForImageClassification", STAGES, "image"),
    "ConvNeXt v2": ("ConvNextV2Config", "ConvNextV2ForImageClassification", STAGES, "image"),
    "BEiT": ("BeitConfig", "BeitForImageClassification", {**PICTURE, "use_relative_position_bias": True}, "image"),
    "DeiT": ("DeiTConfig", "DeiTForImageClassification", PICTURE, "image"),
    "DINOv2": ("Dinov2Config", "Dinov2ForImageClassification", PICTURE, "image"),
    "DPT": ("DPTConfig", "DPTForDepthEstimation", {
        **PICTURE, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "fusion_hidden_size": 16,
        "neck_hidden_sizes": [8, 8, 16, 16],
    }, "image"),
    "GLPN": ("GLPNConfig", "GLPNForDepthEstimation", {"hidden_sizes": [8, 16, 24, 32], "depths": [1] * 4,
             "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16}, "image"),
    "ResNet": ("ResNetConfig", "ResNetForImageClassification", {**STAGES, "embedding_size": 8}, "image"),
    "RegNet": ("RegNetConfig", "RegNetForImageClassification", {**STAGES, "embedding_size": 8, "groups_width": 8},
               "image"),
    "MobileViT": ("MobileViTConfig", "MobileViTForImageClassification", {"hidden_sizes": [16, 20, 24],
                  "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 16], "image_size": 64}, "large image"),
    "MobileViT v2": ("MobileViTV2Config", "MobileViTV2ForImageClassification", {"image_size": 64,
                     "width_multiplier": 0.25}, "large image"),
    "PoolFormer": ("PoolFormerConfig", "PoolFormerForImageClassification", STAGES, "image"),
    "LeViT": ("LevitConfig", "LevitForImageClassification", {"image_size": 64, "hidden_sizes": [16, 24, 32],
              "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1], "key_dim": [8, 8, 8]}, "large image"),
    "PVT": ("PvtConfig", "PvtForImageClassification", {"image_size": 32, "hidden_sizes": [8, 16, 24, 32],
            "depths": [1] * 4, "num_attention_heads": [1, 2, 2, 4], "drop_path_rate": 0.0}, "image"),
    "ViT MAE": ("ViTMAEConfig", "ViTMAEModel", {**PICTURE, "mask_ratio": 0.0}, "noised image"),
    "UPerNet": ("UperNetConfig", "UperNetForSemanticSegmentation", {
        "backbone_config": {**BACKBONE, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
        "hidden_size": 16, "auxiliary_in_channels": 24, "auxiliary_channels": 8, "auxiliary_num_convs": 1,
    }, "large image"),
    "SAM's images": ("SamVisionConfig", "SamVisionModel", {
                     **PICTURE, "output_channels": 16, "global_attn_indexes": [1], "num_pos_feats": 8,
                     "mlp_dim": 32, "window_size": 2, "num_channels": 3}, "image"),
    "SAM": ("SamConfig", "SamModel", {
        "vision_config": {**PICTURE, "output_channels": 32, "global_attn_indexes": [1], "num_pos_feats": 16,
                          "mlp_dim": 32, "window_size": 2},
        "prompt_encoder_config": {"hidden_size": 32, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
        "mask_decoder_config": {"hidden_size": 32, "mlp_dim": 32, "num_attention_heads": 4,
                                "iou_head_hidden_dim": 16},
    }, "points"),
    "SuperPoint": ("SuperPointConfig", "SuperPointForKeypointDetection", {}, "image"),
    "VideoMAE": ("VideoMAEConfig", "VideoMAEForVideoClassification", {**PICTURE, "num_frames": 4}, "video"),
    "TimeSformer": ("TimesformerConfig", "TimesformerForVideoClassification", {**PICTURE, "num_frames": 4}, "video"),
    "ViViT": ("VivitConfig", "VivitForVideoClassification", {**PICTURE, "num_frames": 4, "tubelet_size": [2, 8, 8]},
              "video"),
    # images and text
    "SigLIP": ("SiglipConfig", "SiglipModel", {"text_config": {**SMALL, "max_position_embeddings": 16},
               "vision_config": PICTURE}, "both"),
    "OWL-ViT": ("OwlViTConfig", "OwlViTModel", {"text_config": {**SMALL, "max_position_embeddings": 16},
                "vision_config": PICTURE, "projection_dim": 16}, "both"),
    "LXMERT": ("LxmertConfig", "LxmertModel", {**SMALL, "l_layers": 1, "x_layers": 1, "r_layers": 1,
               "visual_feat_dim": 12}, "regions"),
    # sound
    "HuBERT": ("HubertConfig", "HubertForCTC", SOUND, "wave"),
    "WavLM": ("WavLMConfig", "WavLMModel", {**SOUND, "num_buckets": 8}, "wave"),
    "UniSpeech": ("UniSpeechConfig", "UniSpeechModel", SOUND, "wave"),
    "SEW": ("SEWConfig", "SEWModel", {**SOUND, "squeeze_factor": 2}, "wave"),
    "Wav2Vec2 Conformer": ("Wav2Vec2ConformerConfig", "Wav2Vec2ConformerModel", {
        **SOUND, "position_embeddings_type": "relative", "conv_depthwise_kernel_size": 3}, "wave"),
    "Speech2Text": ("Speech2TextConfig", "Speech2TextForConditionalGeneration", {
        **BOTH, "input_feat_per_channel": 8, "input_channels": 1, "conv_channels": 16, "max_source_positions": 40,
        "max_target_positions": 20,
    }, "frames"),
    "AST": ("ASTConfig", "ASTForAudioClassification", {**SMALL, "max_length": 32, "num_mel_bins": 16, "patch_size": 8,
            "frequency_stride": 8, "time_stride": 8}, "mel"),
    "EnCodec": ("EncodecConfig", "EncodecModel", {"num_filters": 4, "upsampling_ratios": [4, 2], "hidden_size": 16,
                "num_lstm_layers": 1, "codebook_size": 8, "codebook_dim": 16, "target_bandwidths": [12.0],
                "sampling_rate": 16000}, "sound"),
    # states in place of attention, attention to some, experts
    "xLSTM": ("xLSTMConfig", "xLSTMForCausalLM", {**SMALL, "num_heads": 4, "num_blocks": 2, "chunk_size": 4}, "ids"),
    "Falcon Mamba": ("FalconMambaConfig", "FalconMambaForCausalLM", {**SMALL, "state_size": 8, "time_step_rank": 8},
                     "text"),
    "Falcon H1": ("FalconH1Config", "FalconH1ForCausalLM", {**DECODER, "mamba_d_state": 8, "mamba_chunk_size": 4},
                  "text"),
    "Zaya": ("ZayaConfig", "ZayaForCausalLM", {
        **SMALL, "head_dim": 8, "moe_intermediate_size": 32, "num_experts": 4, "router_hidden_size": 16,
        "layer_types": ["hybrid", "hybrid"],
    }, "text"),
    "Nemotron-H": ("NemotronHConfig", "NemotronHForCausalLM", {
        "vocab_size": 50, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 64, "ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 1,
        "chunk_size": 4, "n_routed_experts": 4, "moe_intermediate_size": 32, "use_cache": False,
        "moe_shared_expert_intermediate_size": 32, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
    }, "text"),
    "OLMo Hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM", {
        **DECODER, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 4,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    }, "text"),
    "MiniMax": ("MiniMaxConfig", "MiniMaxForCausalLM", {
        **DECODER, "num_local_experts": 4, "layer_types": ["full_attention", "linear_attention"], "block_size": 4,
    }, "text"),
    "LFM2": ("Lfm2Config", "Lfm2ForCausalLM", {**DECODER, "layer_types": ["conv", "full_attention"]}, "text"),
    "GPT-OSS": ("GptOssConfig", "GptOssForCausalLM", {
        **DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
    }, "text"),
    "DiffLlama": ("DiffLlamaConfig", "DiffLlamaForCausalLM", DECODER, "text"),
    "HRM": ("HrmTextConfig", "HrmTextForCausalLM", {**SMALL, "head_dim": 8, "num_layers_per_stack": 2}, "text"),
    "ModernBERT decoder": ("ModernBertDecoderConfig", "ModernBertDecoderForCausalLM", {
        **SMALL, "cls_token_id": 1, "sep_token_id": 2, "sliding_window": 4, "layer_types": ["full_attention"] * 2,
    }, "text"),
    "Kolibri": ("Kolibri1Config", "Kolibri1ForCausalLM", {
        **DECODER, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts_per_tok": 2,
        "num_local_experts": 4, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"],
    }, "text"),
    "LFM3": ("Lfm3Config", "Lfm3ForCausalLM", {**DECODER, "layer_types": ["conv", "conv"]}, "text"),
    # images, once more
    "FocalNet": ("FocalNetConfig", "FocalNetForImageClassification", {
        "image_size": 32, "embed_dim": 16, "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3],
    }, "image"),
    "Hiera": ("HieraConfig", "HieraForImageClassification", {
        "image_size": [32, 32], "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 2],
    }, "image"),
    "PVT v2": ("PvtV2Config", "PvtV2ForImageClassification", {
        "image_size": 32, "depths": [1] * 4, "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 2, 4],
    }, "image"),
    "DINOv3 ConvNeXt": ("DINOv3ConvNextConfig", "DINOv3ConvNextModel", {
        "hidden_sizes": [8, 16, 24, 32], "depths": [1] * 4, "image_size": 32,
    }, "image"),
    "ViTDet": ("VitDetConfig", "VitDetModel", {**PICTURE, "pretrain_image_size": 32}, "image"),
    "Pixio": ("PixioConfig", "PixioModel", PICTURE, "image"),
    "DINOv2 with registers": ("Dinov2WithRegistersConfig", "Dinov2WithRegistersForImageClassification", PICTURE,
                              "image"),
    # time series
    "Time series": ("TimeSeriesTransformerConfig", "TimeSeriesTransformerForPrediction", SERIES, "series"),
    "Informer": ("InformerConfig", "InformerForPrediction", SERIES, "series"),
    "PatchTST": ("PatchTSTConfig", "PatchTSTForPrediction", {
        "num_input_channels": 2, "context_length": 16, "patch_length": 4, "patch_stride": 4, "d_model": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16, "prediction_length": 4,
    }, "past"),
    "Decision Transformer": ("DecisionTransformerConfig", "DecisionTransformerModel", {
        "state_dim": 5, "act_dim": 3, "hidden_size": 32, "n_layer": 2, "n_head": 4, "max_ep_len": 20,
    }, "decisions"),
}  # fmt: skip


def made(name: str) -> tuple[Any, dict[str, Any]]:
    """A network by its name, and what it is given."""
    import tests.helpers.audio_extension
    import tests.helpers.vision  # noqa: F401  transformers imports torchvision and torchaudio where they are

    import transformers as tf  # isort: skip

    config, network, options, kind = KINDS[name]
    return getattr(tf, network)(getattr(tf, config)(**options)), _given(kind)


def _given(kind: str) -> dict[str, Any]:
    """The inputs of a kind, the same each time."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def ids(length: int) -> Any:
        return torch.randint(2, 50, (2, length), generator=generator)

    def rand(*shape: int) -> Any:
        return torch.rand(shape, generator=generator)

    def mask(length: int) -> Any:
        found = torch.ones(2, length, dtype=torch.int64)
        found[1, length - 2 :] = 0
        return found

    makers: dict[str, Any] = {
        "text": lambda: {"input_ids": ids(7), "attention_mask": mask(7)},
        "ids": lambda: {"input_ids": ids(7)},
        "eight": lambda: {"input_ids": ids(8), "attention_mask": mask(8)},
        "vectors": lambda: {"inputs": rand(2, 6, 12)},
        "pairs": lambda: {"input_ids": ids(7), "attention_mask": mask(7), "labels": ids(5)},
        "pairs of eight": lambda: {"input_ids": ids(8), "attention_mask": mask(8), "labels": ids(5)},
        "image": lambda: {"pixel_values": rand(2, 3, 32, 32)},
        "large image": lambda: {"pixel_values": rand(2, 3, 64, 64)},
        "noised image": lambda: {"pixel_values": rand(2, 3, 32, 32), "noise": rand(2, 16)},
        "points": lambda: {"pixel_values": rand(2, 3, 32, 32), "input_points": 32 * rand(2, 1, 2, 2),
                           "input_labels": torch.ones(2, 1, 2, dtype=torch.int64)},
        "video": lambda: {"pixel_values": rand(2, 4, 3, 32, 32)},
        "both": lambda: {"input_ids": ids(7), "attention_mask": mask(7), "pixel_values": rand(2, 3, 32, 32)},
        "regions": lambda: {"input_ids": ids(7), "visual_feats": rand(2, 3, 12), "visual_pos": rand(2, 3, 4)},
        "wave": lambda: {"input_values": rand(2, 1000) - 0.5},
        "sound": lambda: {"input_values": rand(2, 1, 400) - 0.5},
        "frames": lambda: {"input_features": rand(2, 20, 8), "decoder_input_ids": ids(5)},
        "mel": lambda: {"input_values": rand(2, 32, 16)},
        "series": lambda: {"past_values": rand(2, 10), "past_time_features": rand(2, 10, 1),
                           "past_observed_mask": torch.ones(2, 10), "future_values": rand(2, 4),
                           "future_time_features": rand(2, 4, 1)},
        "past": lambda: {"past_values": rand(2, 16, 2)},
        "decisions": lambda: {
            "states": rand(2, 4, 5), "actions": rand(2, 4, 3), "rewards": rand(2, 4, 1),
            "returns_to_go": rand(2, 4, 1), "timesteps": torch.arange(4).repeat(2, 1),
            "attention_mask": torch.ones(2, 4, dtype=torch.int64),
        },
    }  # fmt: skip
    found: dict[str, Any] = makers[kind]()
    return found
