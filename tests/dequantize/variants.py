"""The variants of quantised checkpoints: each function makes one checkpoint with the names and the config of real ones."""

import numpy as np

import schemes
from checkpoint import Checkpoint, floats, tensor
from schemes import Draw

VARIANTS = {}
LAYER = "model.layers.0."


def variant(function):
    VARIANTS[function.__name__.replace("_", "-")] = function
    return function


def make(name, seed=0):
    """The checkpoint of a variant; the same for the same seed."""
    number = sum(ord(letter) * (i + 1) for i, letter in enumerate(name))
    model = Checkpoint()
    VARIANTS[name](model, Draw((number, seed)))
    return model


def dress(model, draw, architecture, quantization=None, **more):
    """The tensors that are not quantised, the config, and the other files of a repository."""
    model.passes("model.embed_tokens.weight", draw.floats("BF16", (17, 24)))
    model.passes(LAYER + "input_layernorm.weight", draw.floats("BF16", (24,)))
    model.passes(LAYER + "mlp.gate.e_score_correction_bias", draw.floats("F32", (5,)))
    model.passes(LAYER + "self_attn.q_norm.weight", draw.floats("F16", (7,)))
    model.passes("model.norm.weight", draw.floats("BF16", (24,)))
    model.passes("model.position_ids", tensor("I64", np.arange(3)))
    model.config = {
        "architectures": [architecture], "hidden_size": 24, "model_type": architecture.split("For")[0].lower(),
        "num_hidden_layers": 1, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "vocab_size": 17, **more,
    }
    if quantization is not None:
        model.config["quantization_config"] = quantization
    model.files["generation_config.json"] = {"do_sample": True, "temperature": 0.6}
    model.files["tokenizer_config.json"] = {"model_max_length": 4096}
    model.files["tokenizer.json"] = {"version": "1.0"}
    model.files[".env"] = b"TOKEN=secret\n"
    model.files["notes.txt"] = b"not for loaders\n"


# 1. FP8.


def fp8_config(block=(128, 128), **more):
    return {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
            "weight_block_size": list(block) if block else None, **more}


@variant
def fp8_block_f32(model, draw):
    """DeepSeek-V3: ragged in both dimensions, 576-like rows, and sizes below one block."""
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
    """Blocks other than the config's, which only the grid of scales tells."""
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
    """Mistral: weight_block_size is null, the scale of a tensor has shape []. In a text_config too."""
    dress(model, draw, "Mistral3ForConditionalGeneration", fp8_config(None, activation_scheme="static"),
          text_config={"model_type": "mistral", "torch_dtype": "bfloat16", "quantization_config": fp8_config(None)})
    for name in ("q_proj", "k_proj"):
        module = f"{LAYER}self_attn.{name}"
        schemes.fp8_with(model, draw, module + ".weight", (33, 65), module + ".weight_scale_inv", (), "BF16")
        model.put(module + ".activation_scale", floats("BF16", 0.5))


@variant
def fp8_tensor_one(model, draw):
    """AutoFP8 and vLLM: weight_scale of shape [1] or [], and input_scale. A scale is NaN, one is 0."""
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
    """A scale a row: vLLM's fp8 with weight_scale [out,1]."""
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
    """Llama-4-Maverick-FP8: the scale of the experts belongs to the last dimension, whatever its own shape."""
    dress(model, draw, "Llama4ForConditionalGeneration", {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
          text_config={"model_type": "llama4_text", "hidden_size": 24})
    experts = "language_model.model.layers.0.feed_forward.experts."
    schemes.fp8_with(model, draw, experts + "gate_up_proj", (3, 24, 34), experts + "gate_up_proj_scale", (3, 1, 34))
    schemes.fp8_with(model, draw, experts + "down_proj", (3, 17, 24), experts + "down_proj_scale", (3, 24, 1), aligned=(3, 1, 24))


@variant
def deepseek_v4(model, draw):
    """FP8 with X.scale beside routed experts in FP4 (I8)."""
    dress(model, draw, "DeepseekV4ForCausalLM", fp8_config(scale_fmt="ue8m0"), expert_dtype="fp4")
    for name, shape in (("attn.wq_a", (300, 260)), ("ffn.shared_experts.w1", (128, 129))):
        schemes.fp8_block(model, draw, f"layers.0.{name}.weight", shape, (128, 128), "F8_E8M0", f"layers.0.{name}.scale")
    for expert in range(2):
        module = f"layers.0.ffn.experts.{expert}.w1"
        schemes.fp4(model, draw, module + ".weight", module + ".weight", (35, 96), module + ".scale", 32, "F8_E8M0", "I8")


@variant
def deepseek_v4_base(model, draw):
    """V4-Base: the experts are FP8 too, and the scales F32."""
    dress(model, draw, "DeepseekV4ForCausalLM", fp8_config())
    for name in ("ffn.experts.0.w1", "ffn.experts.1.w1", "attn.wo_a"):
        schemes.fp8_block(model, draw, f"layers.0.{name}.weight", (129, 140), (128, 128), "F32", f"layers.0.{name}.scale")


@variant
def fp8_no_scales(model, draw):
    """A checkpoint that was cast: FP8, and no scale in it."""
    model.shards = 1
    dress(model, draw, "FluxForCausalLM")
    schemes.fp8_alone(model, draw, "double_blocks.0.img_mlp.0.weight", (31, 33))
    schemes.fp8_alone(model, draw, "double_blocks.0.img_mlp.2.weight", (256,))
    schemes.fp8_alone(model, draw, "single_blocks.0.linear1.weight", (16, 17), "F8_E5M2")
    schemes.fp8_alone(model, draw, "single_blocks.0.linear1.alpha", ())


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
    """The files of original/: not transposed, other names, and another config."""
    model.shards = 1
    dress(model, draw, "GptOssForCausalLM")
    schemes.gpt_oss(model, draw, "block.0.mlp.mlp1_weight", 2, 35, 64, ".", transposed=False)
    schemes.gpt_oss(model, draw, "block.0.mlp.mlp2_weight", 2, 64, 32, ".", transposed=False)
    model.passes("block.0.mlp.mlp1_bias", draw.floats("BF16", (2, 35)))
    model.config = {"num_hidden_layers": 1, "num_experts": 2, "vocab_size": 17, "hidden_size": 24, "swiglu_limit": 7.0}


# 3. compressed-tensors.


def ct_weights(bits, strategy, kind="int", symmetric=True, group=None, **more):
    return {"actorder": None, "block_structure": None, "dynamic": False, "group_size": group, "num_bits": bits, "observer": "minmax",
            "observer_kwargs": {}, "strategy": strategy, "symmetric": symmetric, "type": kind, **more}


def ct_config(form, weights, targets=("Linear",), **more):
    return {"config_groups": {"group_0": {"input_activations": None, "output_activations": None, "targets": list(targets), "weights": weights}},
            "format": form, "ignore": ["lm_head"], "kv_cache_scheme": None, "quant_method": "compressed-tensors",
            "quantization_status": "compressed", **more}


def ct_packed(name, bits, layout="dense", **more):
    """Registers a variant of pack-quantized with this many bits."""

    def function(model, draw):
        group = more.get("group", 32)
        strategy = "group" if group else "channel"
        dress(model, draw, "LlamaForCausalLM",
              ct_config("pack-quantized", ct_weights(bits, strategy, symmetric="zero" not in more, group=group or None,
                                                     actorder="group" if more.get("order") else None)))
        shapes = ((35, 96), (9, 320), (64, 64)) if group else ((35, 131), (6, 333))
        for module, shape in zip(("mlp.up_proj", "mlp.down_proj", "self_attn.q_proj"), shapes):
            schemes.ct_pack(model, draw, LAYER + module, shape, bits, layout=layout, **{"group": 32, **more})

    function.__name__ = name
    variant(function)


for number in (2, 4, 8):
    ct_packed(f"ct_pack_{number}", number)
for number in (3, 5, 6, 7):
    ct_packed(f"ct_pack_{number}_dense", number)
    ct_packed(f"ct_pack_{number}_words", number, "words")
ct_packed("ct_pack_4_channel", 4, group=0, dtype="F32")
ct_packed("ct_pack_4_zero_points", 4, zero="packed", dtype="F16")
ct_packed("ct_pack_4_zero_points_channel", 4, zero="packed", group=0)
ct_packed("ct_pack_4_zero_points_i8", 4, zero="I8")
ct_packed("ct_pack_3_zero_points_dense", 3, zero="packed")
ct_packed("ct_pack_5_zero_points_words", 5, "words", zero="packed")
ct_packed("ct_pack_8_zero_points", 8, zero="packed", dtype="F32")
ct_packed("ct_pack_4_g_idx", 4, order="g_idx", dtype="F32")
ct_packed("ct_pack_4_g_idx_zero_points", 4, order="g_idx", zero="packed", shape_type="I32")
ct_packed("ct_pack_4_g_idx_unused", 4, order="unused")


@variant
def ct_kimi_k2(model, draw):
    """Kimi-K2-Thinking: names of single experts, a text_config, three shards."""
    model.shards = 3
    config = ct_config("pack-quantized", ct_weights(4, "group", group=32), ignore=["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"])
    dress(model, draw, "KimiK25ForConditionalGeneration", text_config={"quantization_config": config, "dtype": "bfloat16"})
    for expert in range(3):
        schemes.ct_pack(model, draw, f"language_model.{LAYER}mlp.experts.{expert}.down_proj", (40, 64), 4, 32, shape_type="I32")
    model.passes(f"language_model.{LAYER}self_attn.q_proj.weight", draw.floats("BF16", (8, 24)))


@variant
def ct_int8(model, draw):
    dress(model, draw, "LlamaForCausalLM", ct_config("int-quantized", ct_weights(8, "channel")))
    schemes.ct_int8(model, draw, LAYER + "self_attn.q_proj", (37, 53), "channel")
    schemes.ct_int8(model, draw, LAYER + "self_attn.k_proj", (37, 53), "tensor", dtype="F32")
    schemes.ct_int8(model, draw, LAYER + "self_attn.v_proj", (37, 96), 32, dtype="F16")


@variant
def ct_int8_zero_points(model, draw):
    dress(model, draw, "LlamaForCausalLM", ct_config("int-quantized", ct_weights(8, "channel", symmetric=False)))
    schemes.ct_int8(model, draw, LAYER + "self_attn.q_proj", (37, 53), "channel", zero=True)
    schemes.ct_int8(model, draw, LAYER + "self_attn.k_proj", (37, 53), "tensor", zero=True, dtype="F32")
    schemes.ct_int8(model, draw, LAYER + "self_attn.v_proj", (37, 96), 32, zero=True)


@variant
def ct_naive_int8(model, draw):
    dress(model, draw, "LlamaForCausalLM", ct_config("naive-quantized", ct_weights(8, "channel")))
    schemes.ct_int8(model, draw, LAYER + "self_attn.q_proj", (11, 13), "channel", dtype="F32")


def ct_fp8(model, draw, strategy, shape, grid, dtype, **more):
    dress(model, draw, "LlamaForCausalLM", ct_config("float-quantized", ct_weights(8, strategy, "float", **more)))
    for name in ("q_proj", "k_proj"):
        module = f"{LAYER}self_attn.{name}"
        schemes.fp8_with(model, draw, module + ".weight", shape, module + ".weight_scale", grid, dtype, positive=True)
        model.put(module + ".input_scale", floats("BF16", np.ones(1)))


@variant
def ct_float_tensor(model, draw):
    ct_fp8(model, draw, "tensor", (29, 37), (1,), "BF16")


@variant
def ct_float_channel(model, draw):
    ct_fp8(model, draw, "channel", (29, 37), (29, 1), "BF16")


@variant
def ct_naive_float(model, draw):
    ct_fp8(model, draw, "tensor", (29, 37), (), "F32")
    model.config["quantization_config"]["format"] = "naive-quantized"


@variant
def ct_float_block(model, draw):
    """Ragged blocks, where rows // scale_rows is wrong; the older spelling "128x128" is ct_float_block_string."""
    dress(model, draw, "Qwen3MoeForCausalLM", ct_config("float-quantized", ct_weights(8, "block", "float", block_structure=[128, 128])))
    for name, shape in (("up_proj", (300, 257)), ("down_proj", (130, 300))):
        module = f"{LAYER}mlp.{name}"
        schemes.fp8_block(model, draw, module + ".weight", shape, (128, 128), "BF16", module + ".weight_scale")


@variant
def ct_float_block_string(model, draw):
    dress(model, draw, "Qwen3MoeForCausalLM", ct_config("float-quantized", ct_weights(8, "block", "float", block_structure="64x128")))
    schemes.fp8_block(model, draw, LAYER + "mlp.up_proj.weight", (150, 257), (64, 128), "F32", LAYER + "mlp.up_proj.weight_scale")


def divided(model, draw, module):
    """NVFP4 of compressed-tensors: the scale of a group is divided by the tensor's."""

    def factor(values):
        whole = np.float32(draw.rng.uniform(100, 30000))
        for _ in range(100):  # one whose reciprocal would give other values
            finite = np.nan_to_num(values)
            if np.any(finite / whole != finite * (np.float32(1) / whole)):
                break
            whole = np.float32(draw.rng.uniform(100, 30000))
        name = model.put(f"{module}.weight_global_scale", floats("F32", [whole]))
        model.put(f"{module}.input_global_scale", floats("F32", [1.5]))
        return (values / whole).astype(np.float32), [name]

    return factor


@variant
def ct_nvfp4(model, draw):
    dress(model, draw, "LlamaForCausalLM", ct_config("nvfp4-pack-quantized", ct_weights(4, "tensor_group", "float", group=16)))
    for name, shape in (("q_proj", (33, 48)), ("k_proj", (7, 160))):
        module = f"{LAYER}self_attn.{name}"
        schemes.fp4(model, draw, module + ".weight_packed", module + ".weight", shape, module + ".weight_scale", 16, "F8_E4M3",
                    factor=divided(model, draw, module))


@variant
def ct_mxfp4(model, draw):
    dress(model, draw, "LlamaForCausalLM", ct_config("mxfp4-pack-quantized", ct_weights(4, "group", "float", group=32, scale_dtype="torch.uint8")))
    for name, shape in (("q_proj", (33, 96)), ("k_proj", (7, 32))):
        module = f"{LAYER}self_attn.{name}"
        schemes.fp4(model, draw, module + ".weight_packed", module + ".weight", shape, module + ".weight_scale", 32, "U8")


@variant
def ct_mxfp8(model, draw):
    dress(model, draw, "LlamaForCausalLM", ct_config("mxfp8-quantized", ct_weights(8, "group", "float", group=32, scale_dtype="torch.uint8")))
    for name, shape in (("q_proj", (33, 96)), ("k_proj", (7, 32))):
        module = f"{LAYER}self_attn.{name}"
        schemes.fp8_block(model, draw, module + ".weight", shape, (1, 32), "U8", module + ".weight_scale")


@variant
def ct_mixed(model, draw):
    """mixed-precision: a format for each group."""
    config = ct_config("mixed-precision", ct_weights(4, "group", group=32), [r"re:.*mlp\..*_proj$"])
    config["config_groups"]["group_0"]["format"] = "pack-quantized"
    config["config_groups"]["group_1"] = {"format": "float-quantized", "targets": ["re:.*self_attn.*"], "input_activations": None,
                                          "weights": ct_weights(8, "channel", "float")}
    dress(model, draw, "LlamaForCausalLM", config)
    schemes.ct_pack(model, draw, LAYER + "mlp.up_proj", (20, 64), 4, 32)
    schemes.ct_pack(model, draw, LAYER + "mlp.down_proj", (24, 96), 4, 32)
    schemes.fp8_with(model, draw, LAYER + "self_attn.o_proj.weight", (24, 24), LAYER + "self_attn.o_proj.weight_scale", (24, 1), "BF16")
    model.passes("lm_head.weight", draw.floats("BF16", (17, 24)))


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
    """The older kind, with hf_quant_config.json alone."""
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
    module = LAYER + "self_attn.o_proj"  # square: the scale is a row's all the same
    schemes.fp8_with(model, draw, module + ".weight", (24, 24), module + ".weight_scale", (24,), aligned=(24, 1))


@variant
def modelopt_fp8_experts(model, draw):
    modelopt(model, draw, "FP8", "Llama4ForConditionalGeneration")
    experts = LAYER + "feed_forward.experts."
    schemes.fp8_with(model, draw, experts + "gate_up_proj", (3, 24, 34), experts + "gate_up_proj_weight_scale", (3,), aligned=(3, 1, 1))
    schemes.fp8_with(model, draw, experts + "down_proj", (3, 17, 24), experts + "down_proj_weight_scale", (3, 17), aligned=(3, 17, 1))
    model.put(experts + "gate_up_proj_input_scale", floats("F32", 1))


def multiplied(model, draw, name, shape):
    """NVFP4 of ModelOpt: the scale of a group is multiplied by the tensor's, or by the expert's."""

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
def modelopt_nvfp4_experts(model, draw):
    """Three dimensions, packed along the last one."""
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


# 5. GPTQ, AWQ.


def gptq_variant(name, bits, group=32, version=1, sizes=((64, 96), (32, 64)), only_file=False, **more):
    def function(model, draw):
        config = {"bits": bits, "group_size": group, "desc_act": more.get("g_idx") == "order", "sym": more.get("sym", False),
                  "lm_head": False, "damp_percent": 0.01, "true_sequential": True, "quant_method": "gptq"}
        if version == 2:
            config.update(checkpoint_format="gptq_v2", pack_dtype="int32", meta={"quantizer": ["gptqmodel:1.4.0"]})
        dress(model, draw, "Qwen2ForCausalLM", None if only_file else config, torch_dtype="float16")
        model.files["quantize_config.json"] = config
        for module, (rows, columns) in zip(("self_attn.q_proj", "mlp.down_proj"), sizes):
            schemes.gptq(model, draw, LAYER + module, rows, columns, bits, group, version, **more)

    function.__name__ = name
    variant(function)


gptq_variant("gptq_4", 4, sizes=((72, 96), (32, 64)), bias=True)
gptq_variant("gptq_2", 2)
gptq_variant("gptq_3", 3)
gptq_variant("gptq_8", 8, sizes=((68, 96), (12, 64)))
gptq_variant("gptq_4_sym", 4, sym=True, only_file=True)
gptq_variant("gptq_4_desc_act", 4, g_idx="order", sizes=((72, 160), (32, 64)))
gptq_variant("gptq_3_desc_act", 3, g_idx="order", dtype="BF16")
gptq_variant("gptq_4_no_g_idx", 4, g_idx=None)
gptq_variant("gptq_4_one_group", 4, group=-1)
gptq_variant("gptq_4_ragged_group", 4, group=64, sizes=((24, 96), (32, 160)))
gptq_variant("gptq_v2_4", 4, version=2, g_idx="order")
gptq_variant("gptq_v2_8", 8, version=2, sizes=((68, 96), (12, 64)))
gptq_variant("gptq_v2_2", 2, version=2)
gptq_variant("gptq_v2_3", 3, version=2)


def awq_variant(name, zero, config_file, group=32, dtype="F16"):
    def function(model, draw):
        config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": zero, "version": "gemm", "modules_to_not_convert": None}
        dress(model, draw, "Qwen2ForCausalLM", None if config_file else config, torch_dtype="float16")
        if config_file:
            model.files["quant_config.json"] = {"w_bit": 4, "q_group_size": group, "zero_point": zero, "version": "GEMM"}
        for module, (rows, columns) in zip(("self_attn.q_proj", "mlp.down_proj"), ((72, 96), (8, 160))):
            schemes.awq(model, draw, LAYER + module, rows, columns, group, zero, dtype)

    function.__name__ = name
    variant(function)


awq_variant("awq", True, False)
awq_variant("awq_bf16", True, False, dtype="BF16")
awq_variant("awq_no_zero_point", False, False)
awq_variant("awq_old_config", True, True)


@variant
def auto_round(model, draw):
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True, "packing_format": "auto_round:auto_gptq", "data_type": "int"}
    dress(model, draw, "Qwen3ForCausalLM", config)
    schemes.gptq(model, draw, LAYER + "mlp.up_proj", 40, 64, 4, 32, 1, None, sym=True)


@variant
def auto_round_awq(model, draw):
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False, "packing_format": "auto_round:auto_awq", "data_type": "int"}
    dress(model, draw, "Qwen3ForCausalLM", config)
    schemes.awq(model, draw, LAYER + "mlp.up_proj", 40, 64, 32)


# 6. bitsandbytes.


def bnb_variant(name, *shapes, kind="nf4", **more):
    def function(model, draw):
        dress(model, draw, "LlamaForCausalLM",
              {"quant_method": "bitsandbytes", "_load_in_4bit": True, "_load_in_8bit": False, "load_in_4bit": True, "load_in_8bit": False,
               "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": more.get("nested", False),
               "bnb_4bit_quant_storage": {"U8": "uint8", "BF16": "bfloat16", "F32": "float32"}[more.get("storage", "U8")],
               "llm_int8_skip_modules": None, "llm_int8_threshold": 6.0})
        for module, shape in zip(("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj"), shapes):
            schemes.bnb4(model, draw, f"{LAYER}{module}.weight", shape, kind, **more)

    function.__name__ = name
    variant(function)


bnb_variant("bnb_nf4", (24, 40), (7, 33), (1, 1))
bnb_variant("bnb_fp4", (24, 40), (7, 33), kind="fp4", block=128)
bnb_variant("bnb_nf4_double", (72, 260), (7, 33), nested=True)
bnb_variant("bnb_fp4_double", (72, 260), (5, 7), kind="fp4", nested=True)
bnb_variant("bnb_nf4_storage_bf16", (24, 40), (12, 31), storage="BF16")
bnb_variant("bnb_nf4_storage_f32", (24, 40), (16, 31), storage="F32", nested=True)


@variant
def bnb_int8(model, draw):
    dress(model, draw, "LlamaForCausalLM", {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False, "llm_int8_threshold": 6.0})
    schemes.bnb8(model, draw, LAYER + "self_attn.q_proj", (41, 29))
    schemes.bnb8(model, draw, LAYER + "self_attn.k_proj", (3, 130))


# 7. MLX.


def mlx_config(model, draw, architecture, quantization):
    model.metadata = {"format": "mlx"}
    model.keeps_names = False
    dress(model, draw, architecture, quantization)
    model.config["quantization"] = quantization


def mlx_variant(name, bits, group, dtype="BF16"):
    def function(model, draw):
        mlx_config(model, draw, "Qwen3ForCausalLM", {"group_size": group, "bits": bits, "mode": "affine"})
        for module, shape in (("self_attn.q_proj", (33, 2 * group)), ("mlp.switch_mlp.up_proj", (3, 5, group)), ("mlp.down_proj", (4, 5 * group))):
            schemes.mlx_affine(model, draw, LAYER + module, shape, bits, group, dtype)
        model.passes(LAYER + "self_attn.q_proj.bias", draw.floats("BF16", (33,)))

    function.__name__ = name
    variant(function)


mlx_variant("mlx_2", 2, 64)
mlx_variant("mlx_3", 3, 64, "F16")
mlx_variant("mlx_4", 4, 64)
mlx_variant("mlx_4_group_32_f32", 4, 32, "F32")
mlx_variant("mlx_4_group_128_f16", 4, 128, "F16")
mlx_variant("mlx_5", 5, 32)
mlx_variant("mlx_6", 6, 64)
mlx_variant("mlx_8", 8, 128)


@variant
def mlx_overrides(model, draw):
    """A module of its own bits and group, one that is not quantised, and quantised embeddings."""
    overrides = {"model.quantised_embed": {"group_size": 32, "bits": 8}, "lm_head": False}
    mlx_config(model, draw, "Qwen3ForCausalLM", {"group_size": 64, "bits": 4, "mode": "affine", **overrides})
    schemes.mlx_affine(model, draw, "model.quantised_embed", (17, 96), 8, 32)
    schemes.mlx_affine(model, draw, LAYER + "mlp.up_proj", (20, 128), 4, 64)
    model.passes("lm_head.weight", draw.floats("BF16", (17, 24)))


def mlx_mode(mode, group, bits):
    def function(model, draw):
        mlx_config(model, draw, "GptOssForCausalLM", {"group_size": group, "bits": bits, "mode": mode})
        for module, shape in (("self_attn.q_proj", (33, 96)), ("mlp.experts.up_proj", (3, 5, 64))):
            schemes.mlx_fp(model, draw, LAYER + module, shape, mode)
        model.passes(LAYER + "self_attn.q_proj.bias", draw.floats("BF16", (33,)))

    function.__name__ = f"mlx_{mode}"
    variant(function)


mlx_mode("mxfp4", 32, 4)
mlx_mode("mxfp8", 32, 8)
mlx_mode("nvfp4", 16, 4)
