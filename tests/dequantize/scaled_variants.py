"""Variants with elements of a floating type: FP8, gpt-oss, ModelOpt. Names and configs are copied from real checkpoints."""

import numpy as np

import schemes
from checkpoint import floats, tensor
from registry import LAYER, dress, variant


# 1. FP8.


def fp8_config(block=(128, 128), **more):
    return {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
            "weight_block_size": list(block) if block else None, **more}


@variant
def fp8_block_f32(model, draw):
    """DeepSeek-V3: ragged in both dimensions, and sizes below one block."""
    model.shards = 3
    dress(model, draw, "DeepseekV3ForCausalLM", fp8_config())
    for name, shape in (("self_attn.kv_a_proj_with_mqa", (192, 260)), ("self_attn.o_proj", (256, 128)),
                        ("mlp.experts.0.up_proj", (300, 131)), ("mlp.experts.1.up_proj", (7, 5)), ("mlp.down_proj", (1, 129))):
        schemes.fp8_block(model, draw, f"{LAYER}{name}.weight", shape, (128, 128))
    model.put(LAYER + "self_attn.k_scale", floats("F32", 1))
    model.put(LAYER + "self_attn.v_scale", floats("F32", 1))


@variant
def fp8_block_bf16(model, draw):
    """Qwen3-FP8: the scales are BF16."""
    dress(model, draw, "Qwen3ForCausalLM", fp8_config(modules_to_not_convert=["lm_head", "model.layers.0.input_layernorm"]))
    for name, shape in (("q_proj", (130, 257)), ("k_proj", (64, 384))):
        schemes.fp8_block(model, draw, f"{LAYER}self_attn.{name}.weight", shape, (128, 128), "BF16")
    model.passes("lm_head.weight", draw.floats("BF16", (17, 24)))


@variant
def fp8_block_e8m0(model, draw):
    """DeepSeek-V3.1: scale_fmt ue8m0."""
    dress(model, draw, "DeepseekV3ForCausalLM", fp8_config(scale_fmt="ue8m0"))
    schemes.fp8_block(model, draw, LAYER + "self_attn.q_b_proj.weight", (257, 384), (128, 128), "F8_E8M0")
    schemes.fp8_block(model, draw, LAYER + "mlp.up_proj.weight", (1025, 900), (128, 128), "F8_E8M0")


@variant
def fp8_block_ue8m0_as_f32(model, draw):
    dress(model, draw, "DeepseekV3ForCausalLM", fp8_config(scale_fmt="ue8m0"))
    schemes.fp8_powers(model, draw, LAYER + "self_attn.q_b_proj.weight", (200, 300), (128, 128))


@variant
def fp8_block_mxfp8_u8(model, draw):
    """MXFP8: a block is [1, 32], and a scale is an E8M0 byte in U8."""
    dress(model, draw, "MiniMaxM2ForCausalLM", fp8_config((1, 32), scale_fmt="ue8m0"))
    schemes.fp8_block(model, draw, LAYER + "mlp.experts.0.w1.weight", (33, 96), (1, 32), "U8")
    schemes.fp8_block(model, draw, LAYER + "mlp.experts.0.w2.weight", (9, 64), (1, 32), "U8")


@variant
def fp8_mixed_blocks(model, draw):
    """Blocks that differ from the config, which only the grid of scales shows."""
    dress(model, draw, "DeepseekV4ForCausalLM", fp8_config())
    schemes.fp8_block(model, draw, LAYER + "self_attn.q_proj.weight", (256, 384), (128, 128))
    schemes.fp8_block(model, draw, LAYER + "self_attn.k_proj.weight", (96, 320), (1, 32), "F8_E8M0")
    schemes.fp8_block(model, draw, LAYER + "self_attn.v_proj.weight", (96, 320), (32, 32))


@variant
def fp8_block_fused_experts(model, draw):
    """Three-dimensional weights: X and X_scale_inv."""
    dress(model, draw, "Qwen3MoeForCausalLM", fp8_config())
    schemes.fp8_block(model, draw, LAYER + "mlp.experts.gate_up_proj", (3, 260, 130), (128, 128))
    schemes.fp8_block(model, draw, LAYER + "mlp.experts.down_proj", (3, 130, 129), (128, 128), "BF16")


@variant
def fp8_tensor_scalar(model, draw):
    """Mistral: weight_block_size is null, and the scale of a tensor has the shape []. The config is also in text_config."""
    dress(model, draw, "Mistral3ForConditionalGeneration", fp8_config(None, activation_scheme="static"),
          text_config={"model_type": "mistral", "torch_dtype": "bfloat16", "quantization_config": fp8_config(None)})
    for name in ("q_proj", "k_proj"):
        module = f"{LAYER}self_attn.{name}"
        schemes.fp8_with(model, draw, module + ".weight", (33, 65), module + ".weight_scale_inv", (), "BF16")
        model.put(module + ".activation_scale", floats("BF16", 0.5))


@variant
def fp8_tensor_one(model, draw):
    """AutoFP8 and vLLM: weight_scale of shape [1] or [], and input_scale. One scale is NaN, and one is 0."""
    dress(model, draw, "LlamaForCausalLM", {"quant_method": "fp8", "activation_scheme": "static"}, dtype="bfloat16")
    del model.config["torch_dtype"]
    for name, shape, value in (("q_proj", (1,), 0.0123), ("k_proj", (), 1e-39), ("v_proj", (1,), np.nan), ("o_proj", (1,), 0)):
        module = f"{LAYER}self_attn.{name}"
        codes = draw.f8_codes((19, 31))
        model.put(module + ".weight", tensor("F8_E4M3", codes))
        model.put(module + ".weight_scale", floats("F32", np.full(shape, value)))
        model.put(module + ".input_scale", floats("F32", np.full(shape, 0.7)))
        values = schemes.times(schemes.numbers.E4M3[codes], np.float32(value))
        model.computed(module + ".weight", values, [module + ".weight", module + ".weight_scale"])


@variant
def fp8_channel(model, draw):
    """One scale per row: vLLM's fp8 with weight_scale [out,1]."""
    dress(model, draw, "LlamaForCausalLM", {"quant_method": "fp8", "activation_scheme": "dynamic"})
    schemes.fp8_with(model, draw, LAYER + "mlp.up_proj.weight", (67, 40), LAYER + "mlp.up_proj.weight_scale", (67, 1))
    schemes.fp8_with(model, draw, LAYER + "mlp.down_proj.weight", (40, 67), LAYER + "mlp.down_proj.weight_scale", (40, 1), "BF16")


@variant
def fbgemm(model, draw):
    """Llama-3.1-405B-FP8."""
    dress(model, draw, "LlamaForCausalLM",
          {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]})
    for name, shape in (("gate_proj", (70, 24)), ("down_proj", (24, 70))):
        module = f"{LAYER}mlp.{name}"
        schemes.fp8_with(model, draw, module + ".weight", shape, module + ".weight_scale", (shape[0], 1))
    model.passes(LAYER + "self_attn.q_proj.weight", draw.floats("BF16", (24, 24)))


@variant
def fbgemm_llama4(model, draw):
    """Llama-4-Maverick-FP8: the scale of the experts belongs to the last dimension for any shape of the scale."""
    dress(model, draw, "Llama4ForConditionalGeneration", {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
          text_config={"model_type": "llama4_text", "hidden_size": 24})
    experts = "language_model.model.layers.0.feed_forward.experts."
    schemes.fp8_with(model, draw, experts + "gate_up_proj", (3, 24, 34), experts + "gate_up_proj_scale", (3, 1, 34))
    schemes.fp8_with(model, draw, experts + "down_proj", (3, 17, 24), experts + "down_proj_scale", (3, 24, 1), aligned=(3, 1, 24))


@variant
def deepseek_v4(model, draw):
    """FP8 with X.scale, and routed experts in FP4 (I8)."""
    dress(model, draw, "DeepseekV4ForCausalLM", fp8_config(scale_fmt="ue8m0"), expert_dtype="fp4")
    for name, shape in (("attn.wq_a", (300, 260)), ("ffn.shared_experts.w1", (128, 129))):
        schemes.fp8_block(model, draw, f"layers.0.{name}.weight", shape, (128, 128), "F8_E8M0", f"layers.0.{name}.scale")
    for expert in range(2):
        module = f"layers.0.ffn.experts.{expert}.w1"
        schemes.fp4(model, draw, module + ".weight", module + ".weight", (35, 96), module + ".scale", 32, "F8_E8M0", "I8")


@variant
def deepseek_v4_base(model, draw):
    """V4-Base: the experts are also FP8, and the scales are F32."""
    dress(model, draw, "DeepseekV4ForCausalLM", fp8_config())
    for name in ("ffn.experts.0.w1", "ffn.experts.1.w1", "attn.wo_a"):
        schemes.fp8_block(model, draw, f"layers.0.{name}.weight", (129, 140), (128, 128), "F32", f"layers.0.{name}.scale")


@variant
def fp8_no_scales(model, draw):
    """A checkpoint that was cast to FP8, without scales."""
    model.shards = 1
    dress(model, draw, "FluxForCausalLM")
    schemes.fp8_without_scales(model, draw, "double_blocks.0.img_mlp.0.weight", (31, 33))
    schemes.fp8_without_scales(model, draw, "double_blocks.0.img_mlp.2.weight", (256,))
    schemes.fp8_without_scales(model, draw, "single_blocks.0.linear1.weight", (16, 17), "F8_E5M2")
    schemes.fp8_without_scales(model, draw, "single_blocks.0.linear1.alpha", ())


def gptqmodel_fp8(name, grid_of, **config):
    """GPTQModel's FP8 of 2026: the stored scales are the factors that the weights were multiplied by."""

    def function(model, draw):
        dress(model, draw, "LlamaForCausalLM",
              {"bits": 8, "checkpoint_format": "float8_e4m3fn", "desc_act": False, "format": "float8_e4m3fn", "group_size": -1, "lm_head": False,
               "meta": {"quantizer": ["gptqmodel:5.8.0"], "uri": "https://github.com/modelcloud/gptqmodel"}, "method": "fp8",
               "pack_dtype": "int32", "quant_method": "fp8", "weight_scale_semantics": "inverse", **config})
        block = config.get("weight_block_size")
        for module, shape in (("self_attn.q_proj", (64, 96)), ("mlp.down_proj", (32, 160))):
            schemes.fp8_divided(model, draw, f"{LAYER}{module}.weight", shape, grid_of(shape), block)

    function.__name__ = name
    variant(function)


gptqmodel_fp8("gptqmodel_fp8_tensor", lambda shape: (), weight_scale_method="tensor")
gptqmodel_fp8("gptqmodel_fp8_row", lambda shape: (shape[0],), weight_scale_method="row")
gptqmodel_fp8("gptqmodel_fp8_block", lambda shape: (shape[0] // 32, shape[1] // 32), weight_scale_method="block", weight_block_size=[32, 32])
gptqmodel_fp8("gptqmodel_fp8_block_of_16_columns", lambda shape: (shape[0], shape[1] // 16), weight_scale_method="block", weight_block_size=[1, 16])


# 2. gpt-oss.


@variant
def gpt_oss(model, draw):
    dress(model, draw, "GptOssForCausalLM",
          {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                               "model.embed_tokens", "lm_head"]})
    experts = LAYER + "mlp.experts."
    schemes.gpt_oss(model, draw, experts + "gate_up_proj", 3, 70, 96)
    schemes.gpt_oss(model, draw, experts + "down_proj", 3, 96, 64)
    model.passes(experts + "gate_up_proj_bias", draw.floats("BF16", (3, 70)))
    model.passes(LAYER + "mlp.router.weight", draw.floats("BF16", (3, 24)))


@variant
def gpt_oss_original(model, draw):
    """The files of original/: without transposition, with other names and another config."""
    model.shards = 1
    dress(model, draw, "GptOssForCausalLM")
    schemes.gpt_oss(model, draw, "block.0.mlp.mlp1_weight", 2, 35, 64, ".", transposed=False)
    schemes.gpt_oss(model, draw, "block.0.mlp.mlp2_weight", 2, 64, 32, ".", transposed=False)
    model.passes("block.0.mlp.mlp1_bias", draw.floats("BF16", (2, 35)))
    model.config = {"num_hidden_layers": 1, "num_experts": 2, "vocab_size": 17, "hidden_size": 24, "swiglu_limit": 7.0}


# 4. ModelOpt.


def modelopt(model, draw, algorithm, architecture="LlamaForCausalLM", group=None, only_file=False, **more):
    quantization = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"], **more}
    if group:
        quantization["group_size"] = group
    config = None if only_file else {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"], "config_groups": {
        "group_0": {"weights": {"num_bits": 8 if "8" in algorithm else 4, "type": "float", "group_size": group}, "targets": ["Linear"]}},
        "producer": {"name": "modelopt", "version": "0.33.0"}}
    dress(model, draw, architecture, config)
    model.files["hf_quant_config.json"] = {"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": quantization}
    model.passes("lm_head.weight", draw.floats("BF16", (17, 24)))
    for name in ("k_proj.k_scale", "v_proj.v_scale"):
        model.put(f"{LAYER}self_attn.{name}", floats("F32", 1))


@variant
def modelopt_fp8(model, draw):
    """The older kind, which has only hf_quant_config.json."""
    modelopt(model, draw, "FP8", only_file=True)
    for name, shape in (("q_proj", ()), ("k_proj", (1,))):
        module = f"{LAYER}self_attn.{name}"
        schemes.fp8_with(model, draw, module + ".weight", (31, 33), module + ".weight_scale", shape, positive=True)
        model.put(module + ".input_scale", floats("F32", 1))


@variant
def modelopt_fp8_channel(model, draw):
    modelopt(model, draw, "FP8_PER_CHANNEL_PER_TOKEN")
    module = LAYER + "self_attn.q_proj"
    schemes.fp8_with(model, draw, module + ".weight", (31, 33), module + ".weight_scale", (31,), aligned=(31, 1))
    module = LAYER + "self_attn.o_proj"  # square, but the scale still belongs to the rows
    schemes.fp8_with(model, draw, module + ".weight", (24, 24), module + ".weight_scale", (24,), aligned=(24, 1))


@variant
def modelopt_fp8_experts(model, draw):
    modelopt(model, draw, "FP8", "Llama4ForConditionalGeneration")
    experts = LAYER + "feed_forward.experts."
    schemes.fp8_with(model, draw, experts + "gate_up_proj", (3, 24, 34), experts + "gate_up_proj_weight_scale", (3,), aligned=(3, 1, 1))
    schemes.fp8_with(model, draw, experts + "down_proj", (3, 17, 24), experts + "down_proj_weight_scale", (3, 17), aligned=(3, 17, 1))
    schemes.fp8_with(model, draw, experts + "up_proj", (3, 19, 24), experts + "up_proj_weight_scale", (3, 1), aligned=(3, 1, 1))
    model.put(experts + "gate_up_proj_input_scale", floats("F32", 1))


@variant
def modelopt_fp8_pb_wo(model, draw):
    """Blocks of 128, with scales [rows, 1, columns, 1]."""
    modelopt(model, draw, "FP8_PB_WO", only_file=True)
    for name, shape in (("q_proj", (300, 256)), ("k_proj", (64, 200)), ("experts", (2, 256, 130))):
        module = f"{LAYER}self_attn.{name}"
        schemes.fp8_block(model, draw, module + ".weight", shape, (128, 128), scale=module + ".weight_scale")
        each = model.tensors[module + ".weight_scale"]
        *lead, rows, columns = each.shape
        model.tensors[module + ".weight_scale"] = tensor("F32", each.array().reshape(*lead, rows, 1, columns, 1))


def multiplied(model, draw, name, shape):
    """NVFP4 of ModelOpt: the scale of a group is multiplied by the scale of the tensor or the expert."""

    def factor(values):
        whole = np.asarray(draw.rng.uniform(1e-5, 1e-2, shape), np.float32)
        model.put(name, floats("F32", whole))
        return schemes.times(values, whole.reshape(*shape, *[1] * (values.ndim - len(shape)))), [name]

    return factor


@variant
def modelopt_nvfp4(model, draw):
    modelopt(model, draw, "NVFP4", group=16)
    for name, shape in (("q_proj", (33, 48)), ("k_proj", (7, 160))):
        module = f"{LAYER}self_attn.{name}"
        schemes.fp4(model, draw, module + ".weight", module + ".weight", shape, module + ".weight_scale", 16, "F8_E4M3",
                    factor=multiplied(model, draw, module + ".weight_scale_2", ()))
        model.put(module + ".input_scale", floats("F32", 1))


@variant
def fp4_of_its_own_type(model, draw):
    """The codes have the dtype F4 instead of bytes."""
    modelopt(model, draw, "NVFP4", group=16)
    for name, shape, scale, dtype, group in (("q_proj", (33, 48), "_scale", "F8_E4M3", 16), ("k_proj", (3, 20, 64), "_scale", "U8", 32)):
        weight = f"{LAYER}self_attn.{name}.weight"
        schemes.fp4(model, draw, weight, weight, shape, weight + scale, group, dtype, "F4",
                    multiplied(model, draw, weight + "_scale_2", ()) if group == 16 else None)


@variant
def nvfp4_of_transformers(model, draw):
    """I8, with names of the second scale that other libraries use for a divisor."""
    dress(model, draw, "Qwen3MoeForCausalLM", {"quant_method": "nvfp4", "modules_to_not_convert": ["lm_head"]})
    for name, shape, second, whole in (("self_attn.q_proj.weight", (33, 48), "self_attn.q_proj.weight_global_scale", ()),
                                       ("mlp.experts.gate_up_proj", (3, 20, 48), "mlp.experts.gate_up_proj_weight_global_scale", (3,))):
        schemes.fp4(model, draw, LAYER + name, LAYER + name, shape, LAYER + name + "_scale_inv", 16, "F8_E4M3", "I8",
                    multiplied(model, draw, LAYER + second, whole))
    model.put(LAYER + "self_attn.q_proj.input_global_scale", floats("F32", 1))


@variant
def modelopt_nvfp4_experts(model, draw):
    """Three dimensions, packed along the last dimension."""
    modelopt(model, draw, "NVFP4", group=16, only_file=True)
    experts = LAYER + "mlp.experts."
    for name, shape, whole in (("gate_up_proj", (3, 20, 48), (3,)), ("down_proj", (3, 24, 32), ())):
        schemes.fp4(model, draw, experts + name, experts + name, shape, f"{experts}{name}_weight_scale", 16, "F8_E4M3",
                    factor=multiplied(model, draw, f"{experts}{name}_weight_scale_2", whole))
        model.put(f"{experts}{name}_input_scale", floats("F32", 1))


@variant
def modelopt_nvfp4_bmm(model, draw):
    """Llama-4 as ModelOpt exports it: weight [E,in/2,out] and weight_scale [E,in/16,out], packed along dimension 1."""
    modelopt(model, draw, "NVFP4", "Llama4ForConditionalGeneration", group=16)
    experts = "language_model.model.layers.0.feed_forward.experts."
    for name, (count, columns, rows) in (("gate_up_proj", (3, 48, 34)), ("down_proj", (3, 32, 24))):
        codes = draw.integers(0, 16, (count, rows, columns))
        scales, values = draw.scales("F8_E4M3", (count, rows, columns // 16))
        whole = np.float32(draw.rng.uniform(1e-5, 1e-2))
        model.put(experts + name, tensor("U8", schemes.nibbles(codes).transpose(0, 2, 1)))
        model.put(f"{experts}{name}_weight_scale", tensor("F8_E4M3", scales.array().transpose(0, 2, 1)))
        model.put(f"{experts}{name}_weight_scale_2", floats("F32", whole))
        model.put(f"{experts}{name}_input_scale", floats("F32", 1))
        result = schemes.times(schemes.numbers.E2M1[codes], np.repeat(schemes.times(values, whole), 16, axis=-1))
        model.computed(experts + name, np.ascontiguousarray(result.transpose(0, 2, 1)),
                       [experts + name, f"{experts}{name}_weight_scale", f"{experts}{name}_weight_scale_2"])


@variant
def modelopt_mxfp8(model, draw):
    modelopt(model, draw, "MXFP8", group=32)
    schemes.fp8_block(model, draw, LAYER + "self_attn.q_proj.weight", (33, 96), (1, 32), "U8", LAYER + "self_attn.q_proj.weight_scale")


@variant
def modelopt_mxfp4(model, draw):
    modelopt(model, draw, "MXFP4", group=32)
    module = LAYER + "self_attn.q_proj"
    schemes.fp4(model, draw, module + ".weight", module + ".weight", (33, 96), module + ".weight_scale", 32, "U8")


@variant
def modelopt_mixed(model, draw):
    """MIXED_PRECISION: FP8 attention and NVFP4 experts."""
    layers = {LAYER + "self_attn.q_proj": {"quant_algo": "FP8"}, LAYER + "mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16}}
    modelopt(model, draw, "MIXED_PRECISION", only_file=True, quantized_layers=layers)
    module = LAYER + "self_attn.q_proj"
    schemes.fp8_with(model, draw, module + ".weight", (31, 33), module + ".weight_scale", ())
    module = LAYER + "mlp.up_proj"
    schemes.fp4(model, draw, module + ".weight", module + ".weight", (34, 32), module + ".weight_scale", 16, "F8_E4M3",
                factor=multiplied(model, draw, module + ".weight_scale_2", ()))


@variant
def mistral_consolidated(model, draw):
    """Mistral's own format: qscale_weight multiplies, and qscale_act is left out. params.json names FP8, but stfs does not read it."""
    dress(model, draw, "MistralForCausalLM")
    for name, dtype in (("wq", "F32"), ("wk", "BF16")):
        module = f"layers.0.attention.{name}"
        schemes.fp8_with(model, draw, module + ".weight", (33, 65), module + ".qscale_weight", (), dtype, positive=True)
        model.put(module + ".qscale_act", floats(dtype, 0.5))
    model.put("layers.0.attention.kv_fake_quantizer.qscale_act", floats("F32", 0.5))


@variant
def comfy_scaled(model, draw):
    """ComfyUI's older layout: scale_weight multiplies, scale_input is left out, and scaled_fp8 marks the file."""
    dress(model, draw, "FluxForCausalLM")
    for name, shape in (("img_attn.qkv", ()), ("img_attn.proj", (1,))):
        module = "double_blocks.0." + name
        schemes.fp8_with(model, draw, module + ".weight", (33, 65), module + ".scale_weight", shape, "F32", positive=True)
        model.put(module + ".scale_input", floats("F32", np.full(shape, 0.5)))
    model.put("scaled_fp8", tensor("F8_E4M3", np.zeros(2)))


@variant
def comfy_quant(model, draw):
    """ComfyUI's newer layout: weight_scale, and a text for each weight."""
    dress(model, draw, "FluxForCausalLM")
    module = "double_blocks.0.img_attn.qkv"
    schemes.fp8_with(model, draw, module + ".weight", (33, 65), module + ".weight_scale", (), "F32", positive=True)
    model.put(module + ".comfy_quant", tensor("U8", np.frombuffer(b'{"format": "float8_e4m3fn"}', np.uint8)))
    model.metadata["_quantization_metadata"] = '{"format_version": "1.0", "layers": {"a": {"format": "float8_e4m3fn"}}}'
    model.hides.add("_quantization_metadata")


@variant
def fp8_config_of_a_part(model, draw):
    """The config of the language model under a name other than text_config."""
    dress(model, draw, "InternVLChatModel", llm_config={"model_type": "qwen3", "quantization_config": fp8_config((64, 96))})
    schemes.fp8_block(model, draw, "language_model.model.layers.0.mlp.up_proj.weight", (192, 192), (64, 96))
    schemes.fp8_block(model, draw, "language_model.model.layers.0.mlp.down_proj.weight", (200, 100), (64, 96))
