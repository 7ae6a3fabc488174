"""Variants with packed integers or codes of a table: compressed-tensors, GPTQ, AWQ, bitsandbytes, MLX."""

import numpy as np

import schemes
from checkpoint import floats
from registry import LAYER, dress, variant


# 3. compressed-tensors.


def ct_weights(bits, strategy, kind="int", symmetric=True, group=None, **more):
    return {"actorder": None, "block_structure": None, "dynamic": False, "group_size": group, "num_bits": bits, "observer": "minmax",
            "observer_kwargs": {}, "strategy": strategy, "symmetric": symmetric, "type": kind, **more}


def ct_config(form, weights, targets=("Linear",), **more):
    return {"config_groups": {"group_0": {"input_activations": None, "output_activations": None, "targets": list(targets), "weights": weights}},
            "format": form, "ignore": ["lm_head"], "kv_cache_scheme": None, "quant_method": "compressed-tensors",
            "quantization_status": "compressed", **more}


def ct_packed(name, bits, layout="dense", **more):
    """Registers a variant of pack-quantized with `bits` bits."""

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
def ct_pack_shape_decides(model, draw):
    """93 columns fill the same number of words as 96, which the groups of 32 suggest; only weight_shape decides."""
    dress(model, draw, "LlamaForCausalLM", ct_config("pack-quantized", ct_weights(4, "group", group=32)))
    schemes.ct_pack(model, draw, LAYER + "mlp.up_proj", (35, 93), 4, 31)


for label, scales in (("bf16", "BF16"), ("fp8", "F8_E4M3")):
    ct_packed(f"ct_pack_w4a8_{label}", 4, dtype=scales, rows_dtype="F32")
ct_packed("ct_pack_w4a8_zero_points", 4, dtype="BF16", rows_dtype="BF16", zero="packed", order="g_idx")


@variant
def ct_pack_targets(model, draw):
    """Ten words hold 37 codes of 8 bits, or of 7 bits in the older layout; only the targets decide."""
    config = ct_config("pack-quantized", ct_weights(8, "channel"))
    config["config_groups"]["group_1"] = {"targets": [r"re:.*self_attn\.(q|k)_proj$", LAYER + "mlp.up_proj"], "weights": ct_weights(7, "channel")}
    config["config_groups"]["group_2"] = {"targets": [r"re:.*self_attn\.(?!q_proj|k_proj).*", LAYER + "self_attn.q_proj"], "weights": ct_weights(6, "channel")}
    dress(model, draw, "LlamaForCausalLM", config)
    schemes.ct_pack(model, draw, LAYER + "mlp.gate_proj", (12, 37), 8)
    schemes.ct_pack(model, draw, LAYER + "mlp.up_proj", (12, 37), 7, layout="words")
    schemes.ct_pack(model, draw, LAYER + "self_attn.k_proj", (12, 37), 7, layout="words")
    schemes.ct_pack(model, draw, LAYER + "self_attn.q_proj", (12, 131), 6)
    schemes.ct_pack(model, draw, LAYER + "self_attn.o_proj", (12, 131), 6, layout="words")


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
    """NVFP4 of compressed-tensors: the scale of a group is divided by the scale of the tensor."""

    def factor(values):
        whole = np.float32(draw.rng.uniform(100, 30000))
        for _ in range(100):  # until multiplication by the reciprocal would give other values
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
    """mixed-precision: each group has its own format."""
    config = ct_config("mixed-precision", ct_weights(4, "group", group=32), [r"re:.*mlp\..*_proj$"])
    config["config_groups"]["group_0"]["format"] = "pack-quantized"
    config["config_groups"]["group_1"] = {"format": "float-quantized", "targets": ["re:.*self_attn.*"], "input_activations": None,
                                          "weights": ct_weights(8, "channel", "float")}
    dress(model, draw, "LlamaForCausalLM", config)
    schemes.ct_pack(model, draw, LAYER + "mlp.up_proj", (20, 64), 4, 32)
    schemes.ct_pack(model, draw, LAYER + "mlp.down_proj", (24, 96), 4, 32)
    schemes.fp8_with(model, draw, LAYER + "self_attn.o_proj.weight", (24, 24), LAYER + "self_attn.o_proj.weight_scale", (24, 1), "BF16")
    model.passes("lm_head.weight", draw.floats("BF16", (17, 24)))


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
gptq_variant("gptq_3_sym", 3, sym=True)
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
def gptq_4_sym_as_stored(model, draw):
    """Qwen3.5-27B-GPTQ-Int4 stores zero points unchanged, but names the first version (vllm #38966)."""
    dress(model, draw, "Qwen3ForCausalLM", {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "checkpoint_format": "gptq"})
    schemes.gptq(model, draw, LAYER + "mlp.up_proj", 40, 64, 4, 32, 2, sym=True)


@variant
def gptq_4_sym_but_one(model, draw):
    """A symmetric config with one zero point that is not the middle; the kernels of the library use the stored value."""
    dress(model, draw, "Qwen3ForCausalLM", {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "checkpoint_format": "gptq"})
    schemes.gptq(model, draw, LAYER + "mlp.up_proj", 40, 64, 4, 32, 1, sym="but one")


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


@variant
def auto_round_zeros_as_stored(model, draw):
    """packing_format "auto_round" stores zero points unchanged, unlike "auto_round:auto_gptq"."""
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False, "packing_format": "auto_round", "data_type": "int"}
    dress(model, draw, "Qwen3ForCausalLM", config)
    schemes.gptq(model, draw, LAYER + "mlp.up_proj", 40, 64, 4, 32, 2, None)


@variant
def auto_round_mixed_bits(model, draw):
    """AutoScheme: extra_config has other bits and groups for some modules, but only the shapes decide here."""
    extra = {LAYER + "mlp.down_proj": {"bits": 8, "group_size": 16}, LAYER + "mlp.gate_proj": {"bits": 2}}
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False, "packing_format": "auto_round:auto_gptq", "extra_config": extra}
    dress(model, draw, "Qwen3ForCausalLM", config)
    schemes.gptq(model, draw, LAYER + "mlp.up_proj", 40, 64, 4, 32, 1, None, borrows=True)
    schemes.gptq(model, draw, LAYER + "mlp.down_proj", 64, 64, 8, 16, 1, None, borrows=True)
    schemes.gptq(model, draw, LAYER + "mlp.gate_proj", 64, 64, 2, 32, 1, "order", borrows=True)


@variant
def auto_round_ragged_groups(model, draw):
    """192 columns in groups of 128 have a short last group; extra_config has group sizes for other modules."""
    extra = {LAYER + "mlp.down_proj": {"group_size": 32}, r".*gate_proj.*": {"group_size": 80}, "lm_head": {"bits": 16}}
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": False, "packing_format": "auto_round:auto_gptq",
              "data_type": "int", "extra_config": extra, "autoround_version": "0.9.2", "iters": 200, "nsamples": 512, "seqlen": 4096}
    dress(model, draw, "Qwen3ForCausalLM", config)
    schemes.gptq(model, draw, LAYER + "mlp.up_proj", 40, 192, 4, 128, 1, None, borrows=True)
    schemes.gptq(model, draw, LAYER + "mlp.down_proj", 40, 192, 4, 32, 1, None, borrows=True)
    schemes.gptq(model, draw, LAYER + "mlp.gate_proj", 40, 192, 4, 80, 1, None, borrows=True)


@variant
def auto_round_awq_ragged_groups(model, draw):
    extra = {LAYER + "mlp.down_proj": {"group_size": 32}}
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": False, "packing_format": "auto_round:auto_awq", "extra_config": extra}
    dress(model, draw, "Qwen3ForCausalLM", config)
    schemes.awq(model, draw, LAYER + "mlp.up_proj", 40, 192, 128)
    schemes.awq(model, draw, LAYER + "mlp.down_proj", 40, 192, 32)


@variant
def auto_round_gptq(model, draw):
    """AutoRound's export to GPTQ, which names AutoRound in `provider`."""
    config = {"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": False, "desc_act": False, "damp_percent": 0.01,
              "true_sequential": False, "lm_head": False, "provider": "auto-round", "data_type": "int"}
    dress(model, draw, "Qwen3ForCausalLM", config)
    schemes.gptq(model, draw, LAYER + "mlp.up_proj", 36, 64, 8, 32, 1, borrows=True)


@variant
def auto_round_mxfp4(model, draw):
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True, "data_type": "mx_fp", "act_bits": 4,
              "act_data_type": "mx_fp", "act_group_size": 32, "act_dynamic": True, "packing_format": "auto_round:mxfp"}
    dress(model, draw, "Qwen3ForCausalLM", config)
    schemes.fp4(model, draw, LAYER + "mlp.up_proj.weight_packed", LAYER + "mlp.up_proj.weight", (33, 96), LAYER + "mlp.up_proj.weight_scale", 32, "U8")


def gptqmodel_variant(bits, **more):
    """Zero points of the first version as GPTQModel writes them; an expression gives one module its own group size."""

    def function(model, draw):
        config = {"bits": bits, "checkpoint_format": "gptq", "desc_act": False, "format": "gptq", "group_size": 128, "lm_head": False,
                  "meta": {"damp_percent": 0.05, "mse": 0.0, "quantizer": ["optimum:2.0.0", "gptqmodel:5.6.0"], "true_sequential": True},
                  "method": "gptq", "pack_dtype": "int32", "quant_method": "gptq", "sym": False, **more}
        dress(model, draw, "Qwen3ForCausalLM", config)
        for module, group in (("mlp.up_proj", 128), ("mlp.down_proj", 32 if more else 128)):
            schemes.gptq(model, draw, LAYER + module, 64, 192, bits, group, 1, None, borrows=bits != 3)

    function.__name__ = f"gptqmodel_{bits}" + ("_dynamic" if more else "")
    variant(function)


for number in (2, 3, 4, 8):
    gptqmodel_variant(number)
gptqmodel_variant(4, dynamic={r"+:model\.layers\.\d+\.mlp\.down_proj": {"group_size": 32}, r"-:.*visual.*": {}})


def gptqmodel_embeddings(bits, order):
    """GPTQModel stores a table of embeddings without a transposition."""

    def function(model, draw):
        config = {"bits": bits, "checkpoint_format": "gptq", "desc_act": bool(order), "group_size": 32, "meta": {"quantizer": ["gptqmodel:7.2.0"]},
                  "quant_method": "gptq", "sym": False}
        dress(model, draw, "Qwen3ForCausalLM", config, vocab_size=96)
        del model.tensors["model.embed_tokens.weight"], model.results["model.embed_tokens.weight"]
        for module, rows in (("model.embed_tokens", 64), (LAYER + "mlp.up_proj", 32)):
            schemes.gptq(model, draw, module, rows, 96, bits, 32, 1, "order" if order else None, borrows=bits != 3)
        table = model.results["model.embed_tokens.weight"]
        table.values = np.ascontiguousarray(table.values.T)

    function.__name__ = f"gptqmodel_{bits}_embeddings" + ("_desc_act" if order else "")
    variant(function)


for number, by_index in ((4, False), (3, True), (8, False)):
    gptqmodel_embeddings(number, by_index)


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
    """A module with its own bits and group size, a module without quantisation, and quantised embeddings."""
    overrides = {"model.quantised_embed": {"group_size": 32, "bits": 8}, "lm_head": False}
    mlx_config(model, draw, "Qwen3ForCausalLM", {"group_size": 64, "bits": 4, "mode": "affine", **overrides})
    schemes.mlx_affine(model, draw, "model.quantised_embed", (17, 96), 8, 32)
    schemes.mlx_affine(model, draw, LAYER + "mlp.up_proj", (20, 128), 4, 64)
    model.passes("lm_head.weight", draw.floats("BF16", (17, 24)))


@variant
def mlx_mxfp4_overrides(model, draw):
    """gpt-oss MXFP4-Q8: the parameters of a module inherit neither the mode nor the group size."""
    overrides = {LAYER + "mlp.router": {"group_size": 64, "bits": 8}, "model.quantised_embed": {"bits": 8}, LAYER + "self_attn.o_proj": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}
    mlx_config(model, draw, "GptOssForCausalLM", {"group_size": 32, "bits": 4, "mode": "mxfp4", **overrides})
    schemes.mlx_affine(model, draw, LAYER + "mlp.router", (5, 128), 8, 64)
    schemes.mlx_affine(model, draw, "model.quantised_embed", (17, 128), 8, 64)
    schemes.mlx_fp(model, draw, LAYER + "mlp.experts.up_proj", (3, 5, 64), "mxfp4")
    schemes.mlx_fp(model, draw, LAYER + "self_attn.o_proj", (9, 96), "mxfp4")


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
