"""Checkpoints that `-o dequantize` must reject or must show correctly. Each is a valid variant with one change.

The outcome of a checkpoint is one of these:
"refused": the mount fails, and the message contains one of the words (the tensor or the scheme).
"late": like "refused", or the read of that tensor fails, because only the bytes of its inputs show the error.
"either": like "refused", or the values are correct, because the changed part need not be used.
"right": the values are correct.
"warned": the values are correct, and a line on standard error contains all of the words.
"""

import json
from dataclasses import dataclass

import numpy as np

import variants
from checkpoint import ELEMENTS, Checkpoint, Tensor, floats, tensor
from schemes import Draw

BROKEN = {}
Q = variants.LAYER + "self_attn.q_proj"
W = Q + ".weight"
LAYER = variants.LAYER
UP = LAYER + "mlp.up_proj"
KV = variants.LAYER + "self_attn.kv_a_proj_with_mqa.weight"
EXPERTS = variants.LAYER + "mlp.experts."


@dataclass
class Row:
    base: str
    change: object
    outcome: str
    words: tuple


def row(name, base, words, change, outcome="refused"):
    assert name not in BROKEN, name
    BROKEN[name] = Row(base, change, outcome, (words,) if isinstance(words, str) else tuple(words))


def make(name):
    """Returns the checkpoint and {"outcome", "words"}. The message must contain one of the words, in any case."""
    each = BROKEN[name]
    model = Checkpoint() if each.base == "plain" else variants.make(each.base)
    if each.base == "plain":
        variants.dress(model, Draw(0), "LlamaForCausalLM")
    each.change(model)
    return model, {"outcome": each.outcome, "words": list(each.words)}


def reshaped(name, shape, dtype=None):
    """Gives a tensor another shape, and repeats or cuts its bytes to fit."""

    def change(model):
        old = model.tensors[name]
        kind = dtype or old.dtype
        width = np.dtype(ELEMENTS[kind]).itemsize
        size = int(np.prod(shape, dtype=object)) * width
        model.tensors[name] = Tensor(kind, tuple(shape), (old.data * (size // max(1, len(old.data)) + 1))[:size])

    return change


def removed(*names):
    def change(model):
        for name in names:
            del model.tensors[name]

    return change


def added(name, each):
    return lambda model: model.tensors.update({name: each})


def stored(name, dtype, values):
    return lambda model: model.tensors.update({name: tensor(dtype, np.array(values))})


def config(*path, value):
    """Sets a key in quantization_config and in the section "quantization" of MLX."""

    def change(model):
        for top in ("quantization_config", "quantization"):
            place = model.config.get(top)
            if place is None:
                continue
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value

    return change


def both(*changes):
    def change(model):
        for each in changes:
            each(model)

    return change


# FP8: scales with the wrong shape, or without scales.

row("fp8-scale-too-small", "fp8-block-f32", KV, reshaped(KV + "_scale_inv", (1, 3)))  # 192 / 1, but 260 / 3
row("fp8-scale-too-large", "fp8-block-f32", KV, reshaped(KV + "_scale_inv", (5, 7)))
row("fp8-scale-of-more-dimensions", "fp8-block-f32", KV, reshaped(KV + "_scale_inv", (2, 3, 1)))
row("fp8-scale-empty", "fp8-block-f32", KV, reshaped(KV + "_scale_inv", (0, 3)))
row("fp8-scale-huge-and-empty", "fp8-block-f32", KV, reshaped(KV + "_scale_inv", (2**62, 0)))
row("fp8-scale-of-integers", "fp8-block-f32", KV, reshaped(KV + "_scale_inv", (2, 3), "I64"))
row("fp8-scale-missing", "fp8-block-f32", KV, removed(KV + "_scale_inv"))
row("fp8-weight-missing", "fp8-block-f32", KV, removed(KV))
row("fp8-all-scales-missing", "fp8-block-f32", "names quant_method", lambda model: removed(*[name for name in model.tensors if name.endswith("_scale_inv")])(model))
row("fp8-channel-too-short", "fp8-channel", UP, reshaped(UP + ".weight_scale", (66, 1)))
row("fp8-channel-too-long", "fp8-channel", UP, reshaped(UP + ".weight_scale", (68, 1)))
row("fp8-tensor-of-two", "fp8-tensor-one", Q, reshaped(Q + ".weight_scale", (2,)))
row("fp8-block-size-0", "fp8-block-f32", (KV, "weight_block_size"), config("weight_block_size", value=[0, 128]), "either")
row("fp8-block-size-huge", "fp8-block-f32", (KV, "up_proj", "weight_block_size"), config("weight_block_size", value=[2**63, 2**63]), "either")
row("fp8-block-size-negative", "fp8-block-f32", (KV, "up_proj", "weight_block_size"), config("weight_block_size", value=[-128, 128]), "either")
row("fp8-block-size-text", "fp8-block-f32", (KV, "up_proj", "weight_block_size"), config("weight_block_size", value="128"), "either")
row("fp8-llama4-scale-of-another-expert", "fbgemm-llama4", "gate_up_proj",
    reshaped("language_model.model.layers.0.feed_forward.experts.gate_up_proj_scale", (2, 1, 34)))
row("config-is-no-json", "fp8-block-f32", ("config.json",), lambda model: (model.config.clear(), model.files.update({"config.json": b"{"})), "either")
row("config-is-deep", "fp8-block-f32", ("config.json",),
    lambda model: (model.config.clear(), model.files.update({"config.json": b"[" * 200000 + b"]" * 200000})), "either")
row("config-is-a-list", "fp8-block-f32", ("config.json",), lambda model: (model.config.clear(), model.files.update({"config.json": b"[]"})), "either")
row("quantization-config-is-text", "fp8-block-f32", ("quantization_config",), lambda model: model.config.update(quantization_config="fp8"), "either")
row("dsv4-fp4-odd-scale", "deepseek-v4", "layers.0.ffn.experts.0.w1", reshaped("layers.0.ffn.experts.0.w1.scale", (35, 2)))

# Two scales for 192 rows do not mean blocks of 96 rows; the missing config would name 128.
row("fp8-blocks-of-96-rows", "plain", W, both(added(W, tensor("F8_E4M3", np.zeros((192, 256)))), added(W + "_scale_inv", floats("F32", np.ones((2, 2))))))


def with_scale(suffix, each):
    """FP8 codes with a scale of an unknown name."""
    return both(added(Q + ".weight", tensor("F8_E4M3", np.full((8, 32), 0x38))), added(Q + suffix, each))


row("fp8-unknown-scale", "plain", (Q + ".weight", "new_scale"), with_scale(".new_scale", floats("F32", 0.5)))
row("fp8-unknown-scales", "plain", (Q + ".weight", "scales_of_rows"), with_scale(".scales_of_rows", floats("F32", np.ones(8))))


# Codes next to a tensor that may be their scale or another part of their value, under any names.


def codes(name, dtype, part, shape=(8, 32)):
    """Codes that no scheme uses, and a part with an unknown name and place."""
    return both(added(name, tensor(dtype, np.full(shape, 0x38))), added(part, floats("F32", 0.5)))


for label, name, dtype, part in (
        ("of-a-quantizer", W, "F8_E4M3", W + "_quantizer._scale"), ("of-the-name", W, "F8_E4M3", W + ".scale"), ("of-other-codes", Q + ".float8_data", "F8_E4M3", Q + ".scale"),
        ("of-tensorrt", W, "F8_E4M3", Q + ".weights_scaling_factor"), ("as-amax", W, "F8_E4M3", Q + ".amax"), ("as-amax-of-a-quantizer", W, "F8_E4M3", W + "_quantizer._amax"),
        ("upper-case", W, "F8_E4M3", Q + ".Q.WScale"), ("deep", W, "F8_E5M2", Q + ".parametrizations.weight.original.scaling"), ("beside-the-module", W, "F8_E4M3", Q + "_scale"),
        ("in-a-tree", W, "F8_E4M3", "scales." + W), ("in-a-tree-of-modules", W, "F8_E4M3", "scales." + Q), ("of-a-kernel", Q + ".kernel", "F8_E4M3", Q + ".scale"),
        ("without-a-module", "kernel", "F8_E4M3", "descale"), ("of-flax", "dense/kernel", "F8_E4M3", "dense/scale"), ("as-q-scale", W, "I8", Q + ".q_scale"), ("of-integers", W, "I8", W + "_quantizer._scale"), ("of-bytes", W, "U8", W + ".scale"), ("of-words", Q + ".codes", "I32", Q + ".scale"),
        ("of-words-without-sign", Q + ".codes", "U32", Q + ".w_scale"), ("of-short-words", Q + ".codes", "I16", Q + ".amax"), ("as-a-low-rank-part", Q + ".codes", "I8", Q + ".svd_up")):
    row("scale-" + label, "plain", (f'"{name}"', part), codes(name, dtype, part))
row("scale-of-fp4", "plain", (W, "_scale"), both(added(W, Tensor("F4", (8, 32), bytes(128))), added(W + "_quantizer._scale", floats("F32", 0.5))))
row("scale-beside-other-codes", "fp8-channel", ("codes", "amax"), codes(Q + ".codes", "U8", Q + ".amax"))
# Parameters of a model with names like scales, and integers that are not codes.
row("scale-of-the-model", "plain", (), lambda model: [
    model.computed(model.put(name, tensor("F8_E4M3", np.full((4, 8), 0x38))), np.ones((4, 8), np.float32), [name])
    for name in ("text_projection", "dense/kernel", "scale_shift_table", "blocks.0.scale_shift_table", LAYER + "attn.q_bias", LAYER + "upscaler.conv.weight", W)] + [
    model.passes(name, floats("F32", np.ones(3)))
    for name in ("logit_scale", "dense_norm/scale", "ln/scale", LAYER + "layer_scale", LAYER + "attn.logit_scale", LAYER + "attn.q_norm.scale", LAYER + "ff.scale", LAYER + "upscaler.conv.bias")] + [
    model.passes(LAYER + "attn.relative_position_index", tensor("I64", np.ones((4, 4)))), model.passes(LAYER + "table.scale", floats("F32", 1)),
    model.passes(LAYER + "table.index", tensor("I64", np.ones((4, 4))))], "right")


# ComfyUI.

COMFY = "double_blocks.0.img_attn.qkv"
HEADER = "blocks.0.attn.qkv"


def marked(module, **about):
    """Changes the text that names the format of a layer, in its tensor or in the header."""

    def change(model):
        name = module + ".comfy_quant"
        if name in model.tensors:
            text = json.dumps({**json.loads(model.tensors[name].data), **about}).encode()
            model.tensors[name] = tensor("U8", np.frombuffer(text, np.uint8))
        else:
            whole = json.loads(model.metadata["_quantization_metadata"])
            whole["layers"][module].update(about)
            model.metadata["_quantization_metadata"] = json.dumps(whole)

    return change


def unnamed(module):
    def change(model):
        whole = json.loads(model.metadata["_quantization_metadata"])
        del whole["layers"][module]
        model.metadata["_quantization_metadata"] = json.dumps(whole)

    return change


def metadata(**more):
    return lambda model: (model.metadata.update(more), model.hides.update(more))


for label, module, base in (("tensor", COMFY, "comfy-nvfp4-tiles"), ("header", HEADER, "comfy-formats-in-the-header")):
    row(f"comfy-rotated-{label}", base, "convrot", marked(module, convrot=True))
    row(f"comfy-rotated-in-params-{label}", base, "convrot", marked(module, params={"convrot": True}))
    row(f"comfy-transposed-{label}", base, "transposed", marked(module, transposed=True))
    row(f"comfy-unknown-format-{label}", base, "convrot_w4a4", marked(module, format="convrot_w4a4"))
    row(f"comfy-w4a8-{label}", base, "asym_w4a8_int8", marked(module, format="asym_w4a8_int8"))
    row(f"comfy-format-of-another-type-{label}", base, module, marked(module, format="mxfp8"))
    row(f"comfy-fp8-of-bytes-{label}", base, module, marked(module, format="float8_e4m3fn"), "refused")
    row(f"comfy-format-is-no-text-{label}", base, "format", marked(module, format=4))
for label, form in (("e5m2", "float8_e5m2"), ("int8", "int8_tensorwise"), ("nvfp4", "nvfp4")):
    row("comfy-fp8-of-" + label, "comfy-formats-in-the-header", form, marked("blocks.0.attn.proj", format=form))
row("comfy-int8-of-fp8", "comfy-formats-in-the-header", "float8_e4m3fn", marked("blocks.0.int8.one", format="float8_e4m3fn"))
row("comfy-e5m2-beside-the-weight", "comfy-quant", "float8_e5m2", lambda model: [marked(name.removesuffix(".comfy_quant"), format="float8_e5m2")(model)
                                                                         for name in list(model.tensors) if name.endswith(".comfy_quant")])
row("comfy-rotated-int8", "comfy-formats-in-the-header", "convrot", marked("blocks.0.int8.one", convrot=True))
row("comfy-groupsize-only", "comfy-nvfp4-tiles", "", marked(COMFY, convrot_groupsize=256, group_size=16, num_experts=1), "right")
row("comfy-not-named", "comfy-formats-in-the-header", HEADER, unnamed(HEADER))
row("comfy-mxfp8-not-named", "comfy-formats-in-the-header", "blocks.0.mlp.up", unnamed("blocks.0.mlp.up"))
row("comfy-mark-missing", "comfy-nvfp4-tiles", COMFY, removed(COMFY + ".comfy_quant"))
row("comfy-no-json", "comfy-nvfp4-tiles", COMFY + ".comfy_quant", added(COMFY + ".comfy_quant", tensor("U8", np.zeros(4))))
row("comfy-header-no-json", "comfy-formats-in-the-header", "_quantization_metadata", metadata(_quantization_metadata="{"))
row("comfy-header-deep", "comfy-formats-in-the-header", "_quantization_metadata", metadata(_quantization_metadata="[" * 100000))
row("comfy-scales-in-rows", "comfy-nvfp4-tiles", COMFY, reshaped(COMFY + ".weight_scale", (144, 6)))
row("comfy-scales-of-fewer-tiles", "comfy-nvfp4-tiles", COMFY, reshaped(COMFY + ".weight_scale", (128, 8)))
row("comfy-scales-flat", "comfy-nvfp4-tiles", "", reshaped(COMFY + ".weight_scale", (2048,)), "right")
row("comfy-scales-of-floats", "comfy-nvfp4-tiles", COMFY, reshaped(COMFY + ".weight_scale", (256, 8), "F32"))
row("comfy-scale-2-missing", "comfy-nvfp4-tiles", COMFY, removed(COMFY + ".weight_scale_2"))
row("comfy-scale-missing", "comfy-nvfp4-tiles", COMFY, removed(COMFY + ".weight_scale"))
row("comfy-scale-2-of-two", "comfy-nvfp4-tiles", COMFY, reshaped(COMFY + ".weight_scale_2", (2,)))
row("comfy-weight-missing", "comfy-nvfp4-tiles", COMFY, removed(COMFY + ".weight"))
row("comfy-padded-rows", "comfy-nvfp4-tiles", COMFY, reshaped(COMFY + ".bias", (140,)))
row("comfy-pre-quant-scale-short", "comfy-nvfp4-tiles", "double_blocks.0.img_mlp.0", reshaped("double_blocks.0.img_mlp.0.pre_quant_scale", (319,)))
row("comfy-by-modelopt", "comfy-formats-in-the-header", "ModelOpt", metadata(quantization_config='{"quant_algo": "NVFP4", "quant_method": "modelopt"}'))

# torchao.


def class_of(name, kind=None, **data):
    """Changes the JSON of a weight."""

    def change(model):
        about = json.loads(model.metadata[name])
        about["_type"] = kind or about["_type"]
        about["_data"].update(data)
        model.metadata[name] = json.dumps(about)

    return change


def forgotten(*names):
    return lambda model: [model.metadata.pop(name) for name in names] and model.hides.difference_update(names)


AO = Q + "._weight_"
row("torchao-tiles", "torchao-int4", "Int4TilePackedTo4dTensor", class_of(W, "Int4TilePackedTo4dTensor"))
row("torchao-plain-int32", "torchao-int4", "Int4PlainInt32Tensor", class_of(W, "Int4PlainInt32Tensor"))
row("torchao-class-unknown", "torchao-int8", "NewTensor", class_of(W, "NewTensor"))
row("torchao-not-in-the-header", "torchao-float8", AO + "qdata", forgotten(W))
row("torchao-header-no-json", "torchao-float8", AO + "qdata", lambda model: model.metadata.update({W: "{"}))
row("torchao-header-deep", "torchao-float8", AO + "qdata", lambda model: model.metadata.update({W: "[" * 100000}))
row("torchao-block-sizes-of-text", "torchao-float8", AO + "qdata", class_of(W, block_size=["x"]))
row("torchao-scale-missing", "torchao-float8", AO, removed(AO + "scale"))
row("torchao-scale-of-fewer-rows", "torchao-float8", AO, reshaped(AO + "scale", (36, 1)))
row("torchao-block-size-of-another", "torchao-float8", "block_size", class_of(W, block_size=[37, 1]))
row("torchao-block-size-0", "torchao-float8", "block_size", class_of(W, block_size=[0, 53]))
row("torchao-qdata-of-another-type", "torchao-float8", AO + "qdata", reshaped(AO + "qdata", (37, 53), "I8"))
row("torchao-weight-there-too", "torchao-float8", W, added(W, floats("BF16", np.ones((37, 53)))))
row("torchao-qdata-missing", "torchao-int8", AO, removed(AO + "qdata"))
row("torchao-zero-point-of-another-shape", "torchao-int8", "k_proj", reshaped(variants.LAYER + "self_attn.k_proj._weight_zero_point", (1, 35)))
row("torchao-pre-scale-of-one", "torchao-int8", "k_proj", reshaped(variants.LAYER + "self_attn.k_proj._weight_act_pre_scale", (1,)))
row("torchao-int4-scale-turned", "torchao-int4", AO, reshaped(AO + "scale", (37, 2)))
row("torchao-int4-zero-missing", "torchao-int4", AO, removed(AO + "zero_point"))
row("torchao-int4-without-groups", "torchao-int4", "block_size", class_of(W, block_size=None))
row("torchao-int4-group-of-another-size", "torchao-int4", AO, class_of(W, block_size=[1, 64]))
row("torchao-int4-blocks-of-rows", "torchao-int4", "block_size", class_of(W, block_size=[37, 128]))
row("torchao-tiles-not-said", "torchao-groups", AO, class_of(W, is_swizzled_scales=False))
row("torchao-nvfp4-scale-of-three", "torchao-groups", AO, reshaped(AO + "per_tensor_scale", (3,)))
row("torchao-nvfp4-groups-of-32", "torchao-groups", AO, class_of(W, block_size=32))
row("torchao-nvfp4-tiles-of-two-matrices", "torchao-groups", "experts_of_tiles", lambda model: [reshaped(LAYER + "self_attn.experts_of_tiles._weight_qdata", (6, 64, 32))(model),
                                                                                           reshaped(LAYER + "self_attn.experts_of_tiles._weight_per_tensor_scale", (6, 1, 1))(model)])
row("nvfp4-of-transformers-without-scale", "nvfp4-of-transformers", Q, removed(Q + ".weight_global_scale"))
row("nvfp4-of-another-method", "nvfp4-of-transformers", Q, config("quant_method", value="fp8"))
row("comfy-awq-without-zeros", "comfy-awq", "blocks.0.mod", removed("blocks.0.mod.weight_zeros"))
row("comfy-awq-scales-turned", "comfy-awq", "blocks.0.mod", reshaped("blocks.0.mod.weight_scale", (24, 2)))
row("comfy-nf4", "comfy-awq", "nf4", marked("blocks.0.mod", format="nf4"))
row("modelopt-fp8-pb-wo-of-fewer-columns", "modelopt-fp8-pb-wo", W, reshaped(Q + ".weight_scale", (3, 1, 1, 1)))
row("nvfp4-mxint4", "auto-round-mxfp4", "MXINT4", config("data_type", value="mx_int"))
row("torchao-mx-of-fp6", "torchao-groups", "fp6_e2m3", class_of(UP + ".weight", elem_dtype="fp6_e2m3"))

# ModelOpt.

GATE_UP = EXPERTS + "gate_up_proj"
row("modelopt-int4-of-more-rows", "modelopt-int4-awq", W, reshaped(Q + ".weight_scale", (17, 3)))
row("modelopt-int4-group-of-no-size", "modelopt-int4-awq", W, reshaped(Q + ".weight_scale", (34, 5)))
row("modelopt-w4a8", "modelopt-int4-awq", "W4A8_AWQ", added(Q + ".weight_scale_2", floats("F32", 1)))
row("modelopt-nvfp4-for-comfy", "plain", "ModelOpt wrote for ComfyUI", both(
    metadata(quantization_config='{"quant_algo": "NVFP4"}'), added(W, tensor("U8", np.zeros((128, 32)))),
    added(W + "_scale", tensor("F8_E4M3", np.zeros((128, 4)))), added(W + "_scale_2", floats("F32", 1))))
row("modelopt-nvfp4-for-comfy-in-rows", "modelopt-nvfp4", "", metadata(quantization_config='{"quant_algo": "NVFP4"}'), "right")
row("modelopt-pre-scale-of-rows", "modelopt-int4-awq", W, reshaped(Q + ".pre_quant_scale", (34,)))
row("modelopt-pre-scale-of-integers", "modelopt-scaled-inputs", W, reshaped(Q + ".pre_quant_scale", (48,), "I32"))
row("modelopt-pre-scale-only", "modelopt-int4-awq", "o_proj", added(variants.LAYER + "self_attn.o_proj.pre_quant_scale", floats("BF16", np.ones(8))))
row("modelopt-pre-scale-of-experts", "modelopt-int4-awq", "experts", added(variants.LAYER + "self_attn.experts.pre_quant_scale", floats("BF16", np.ones(64))))
row("modelopt-scale-2-of-three", "modelopt-nvfp4-gate-up", GATE_UP, reshaped(GATE_UP + "_weight_scale_2", (3, 3)))
row("modelopt-scale-2-of-fewer-experts", "modelopt-nvfp4-gate-up", GATE_UP, reshaped(GATE_UP + "_weight_scale_2", (2, 2)))
row("modelopt-scale-2-of-halves-of-down", "modelopt-nvfp4-experts", "down_proj", added(EXPERTS + "down_proj_weight_scale_2", floats("F32", np.ones((3, 2)))))

# GPTQModel.

row("gptqmodel-scb-short", "gptqmodel-bnb8", W, reshaped(W + "_scb", (40,)))
row("gptqmodel-weight-missing", "gptqmodel-bnb8", Q, removed(W))
row("gptqmodel-absmax-missing", "gptqmodel-bnb4", W, removed(W + "_absmax"))
row("gptqmodel-state-missing", "gptqmodel-bnb4", Q, removed(W + "_quant_state"))

# In a checkpoint without quantised weights, names of other schemes have no meaning.
row("fp8-names-of-others", "plain", "", lambda model: [
    model.passes(variants.LAYER + name, floats("BF16", np.ones((4, 4)))) for name in ("attn.W_q", "attn.q_weight", "vq.codebooks", "vq.centroids.weight")], "right")
# A part of the model without quantisation has null in the config.
row("fp8-config-null-in-a-part", "fp8-config-of-a-part", "", lambda model: model.config.update(audio_config={"quantization_config": None}, vision_config={"quantization_config": None}), "right")
row("fp8-configs-of-two-parts", "fp8-config-of-a-part", "quantization_config",
    lambda model: model.config.update(vision_config={"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}}))

# gpt-oss.

row("gpt-oss-scales-missing", "gpt-oss", EXPERTS + "down_proj", removed(EXPERTS + "down_proj_scales"))
row("gpt-oss-blocks-missing", "gpt-oss", EXPERTS + "down_proj", removed(EXPERTS + "down_proj_blocks"))
row("gpt-oss-scales-of-another-shape", "gpt-oss", EXPERTS + "down_proj", reshaped(EXPERTS + "down_proj_scales", (3, 96, 1)))
row("gpt-oss-blocks-of-15", "gpt-oss", EXPERTS + "down_proj", reshaped(EXPERTS + "down_proj_blocks", (3, 96, 2, 15)))
row("gpt-oss-blocks-flat", "gpt-oss", EXPERTS + "down_proj", reshaped(EXPERTS + "down_proj_blocks", (3, 96, 32)))
row("gpt-oss-name-taken", "gpt-oss", EXPERTS + "down_proj", added(EXPERTS + "down_proj", floats("BF16", np.ones((2, 2)))))
row("gpt-oss-width-overflows", "gpt-oss", EXPERTS + "down_proj",
    both(reshaped(EXPERTS + "down_proj_blocks", (0, 0, 2**60, 16)), reshaped(EXPERTS + "down_proj_scales", (0, 0, 2**60))))

# compressed-tensors.

WEIGHTS = ("config_groups", "group_0", "weights")
row("ct-scale-missing", "ct-pack-4", UP, removed(UP + ".weight_scale"))
row("ct-packed-missing", "ct-pack-4", UP, removed(UP + ".weight_packed"))
row("ct-scale-rows", "ct-pack-4", UP, reshaped(UP + ".weight_scale", (34, 3)))
row("ct-scale-groups", "ct-pack-4", UP, reshaped(UP + ".weight_scale", (35, 5)))
row("ct-scale-groups-0", "ct-pack-4", UP, reshaped(UP + ".weight_scale", (35, 0)))
row("ct-shape-columns", "ct-pack-4", UP, stored(UP + ".weight_shape", "I64", [35, 960]))
row("ct-shape-rows", "ct-pack-4", UP, stored(UP + ".weight_shape", "I64", [36, 96]))
row("ct-shape-negative", "ct-pack-4", UP, stored(UP + ".weight_shape", "I64", [-35, -96]))
row("ct-shape-huge", "ct-pack-4", UP, stored(UP + ".weight_shape", "I64", [2**62, 2**62]))
row("ct-shape-of-one", "ct-pack-4", UP, stored(UP + ".weight_shape", "I64", [3360]))
row("ct-shape-of-floats", "ct-pack-4", UP, stored(UP + ".weight_shape", "F32", [35, 96]), "either")
row("ct-bits-5-for-4", "ct-pack-4", UP, config(*WEIGHTS, "num_bits", value=5))
row("ct-bits-8-for-4", "ct-pack-4", UP, config(*WEIGHTS, "num_bits", value=8))
for label, bits in (("0", 0), ("33", 33), ("negative", -4), ("huge", 2**64), ("text", "4"), ("fraction", 4.5), ("null", None)):
    row(f"ct-bits-{label}", "ct-pack-4", (UP, "num_bits"), config(*WEIGHTS, "num_bits", value=bits), "either")
for label, group in (("0", 0), ("huge", 2**63), ("negative", -32), ("5", 5)):
    row(f"ct-group-size-{label}", "ct-pack-4", (UP, "group_size"), config(*WEIGHTS, "group_size", value=group), "either")
row("ct-g-idx-out-of-range", "ct-pack-4-g-idx", UP, stored(UP + ".weight_g_idx", "I32", [3] * 96), "late")
row("ct-g-idx-huge", "ct-pack-4-g-idx", UP, stored(UP + ".weight_g_idx", "I32", [2**31 - 1] * 96), "late")
row("ct-g-idx-negative", "ct-pack-4-g-idx", UP, stored(UP + ".weight_g_idx", "I32", [-2] * 96), "late")
row("ct-g-idx-short", "ct-pack-4-g-idx", UP, stored(UP + ".weight_g_idx", "I32", [0] * 95))
row("ct-zero-points-short", "ct-pack-4-zero-points", UP, reshaped(UP + ".weight_zero_point", (4, 3)))
row("ct-zero-points-groups", "ct-pack-4-zero-points", UP, reshaped(UP + ".weight_zero_point", (5, 2)))
row("ct-zero-points-i8-short", "ct-pack-4-zero-points-i8", UP, reshaped(UP + ".weight_zero_point", (34, 3)))
row("ct-zero-points-turned", "ct-pack-4-zero-points", UP, reshaped(UP + ".weight_zero_point", (3, 5)))
row("ct-zero-points-i8-turned", "ct-pack-4-zero-points-i8", UP, reshaped(UP + ".weight_zero_point", (3, 35)))
row("ct-name-taken", "ct-pack-4", UP, added(UP + ".weight", floats("BF16", np.ones((35, 96)))))
row("ct-config-missing", "ct-pack-4", (UP, "bits", "config"), lambda model: model.config.pop("quantization_config"), "either")
row("ct-groups-are-a-list", "ct-pack-4", (UP, "config_groups"), config("config_groups", value=[1, 2]), "either")
row("ct-target-is-no-expression", "ct-pack-4", (UP, "targets", "re:"), config("config_groups", "group_0", "targets", value=["re:((((((("]), "either")
row("ct-target-is-slow", "ct-pack-4", (UP, "targets", "re:"), config("config_groups", "group_0", "targets", value=["re:(a|a|(.*)*)*$"]), "either")
row("ct-int8-scale", "ct-int8", Q, reshaped(Q + ".weight_scale", (36, 1)))
row("ct-int8-zero-points", "ct-int8-zero-points", Q, reshaped(Q + ".weight_zero_point", (36, 1)))
row("ct-int8-scale-of-powers-of-two", "ct-int8", Q, lambda model: reshaped(Q + ".weight_scale", model.tensors[Q + ".weight_scale"].shape, "U8")(model))
row("ct-float-transform", "ct-float-channel", "transform_config", config("transform_config", value={"config_groups": {"u": {"type": "hadamard"}}}))
row("ct-int8-sparsity", "ct-int8", "sparsity_config", config("sparsity_config", value={"format": "sparse-24-bitmask"}))


def packed(groups, **tensors):
    """A checkpoint with the single quantised weight Q, and one config group for each (bits, group size)."""

    def change(model):
        weights = [variants.ct_weights(bits, "group" if size else "channel", group=size) for bits, size in groups]
        model.config["quantization_config"] = variants.ct_config("pack-quantized", weights[0])
        model.config["quantization_config"]["config_groups"] = {
            f"group_{i}": {"targets": ["Linear"], "weights": each} for i, each in enumerate(weights)}
        model.tensors.update({f"{Q}.weight_{key}": each for key, each in tensors.items()})

    return change


# 8 bits in groups of 64 and 4 bits in groups of 128 both fill 32 words, with 2 scales per row.
for label, groups in (("a", ((4, 128), (8, 64))), ("b", ((8, 64), (4, 128))), ("c", ((8, 64), (4, None)))):
    row("ct-columns-of-two-groups-" + label, "plain", Q,
        packed(groups, packed=tensor("I32", np.zeros((8, 32))), scale=tensor("BF16", np.zeros((8, 1 if label == "c" else 2)))))
# 40 codes of 3 bits fill 4 words both as a stream and as 10 codes per word.
row("ct-two-packings", "plain", Q, packed(((3, None),), packed=tensor("I32", np.zeros((8, 4))), scale=tensor("BF16", np.zeros((8, 1))),
                                          shape=tensor("I64", np.array([8, 40]))))
row("ct-two-of-one-name", "ct-pack-4", UP, both(added(UP + ".weight_blocks", tensor("U8", np.zeros((1, 8, 1, 16)))),
                                                added(UP + ".weight_scales", tensor("U8", np.zeros((1, 8, 1))))))
row("ct-block-scale", "ct-float-block", UP, reshaped(UP + ".weight_scale", (7, 2)))
row("ct-block-of-text", "ct-float-block-string", (UP, "block_structure"), config(*WEIGHTS, "block_structure", value="0x-1"), "either")
row("ct-nvfp4-global-missing", "ct-nvfp4", Q, removed(Q + ".weight_global_scale"))
row("ct-nvfp4-global-of-two", "ct-nvfp4", Q, reshaped(Q + ".weight_global_scale", (2,)))
row("ct-nvfp4-other-columns", "ct-nvfp4", (Q, "number of columns"), added(Q + ".weight_shape", tensor("I64", np.array([33, 63]))))
row("ct-nvfp4-scale-groups", "ct-nvfp4", Q, reshaped(Q + ".weight_scale", (33, 2)))
row("ct-nvfp4-width-overflows", "ct-nvfp4", Q, both(reshaped(Q + ".weight_packed", (0, 2**63)), reshaped(Q + ".weight_scale", (0, 2**60))))

# 240 columns have two scales in blocks of 128 and in blocks of 120.
BLOCKS = {f"group_{i}": {"targets": ["Linear"], "weights": variants.ct_weights(8, "block", "float", block_structure=[8, size])}
          for i, size in enumerate((128, 120))}
row("ct-blocks-of-two-sizes", "plain", Q, both(
    lambda model: model.config.update(quantization_config={**variants.ct_config("float-quantized", {}), "config_groups": BLOCKS}),
    added(Q + ".weight", tensor("F8_E4M3", np.zeros((8, 240)))), added(Q + ".weight_scale", tensor("F32", np.ones((1, 2))))))

# The config names a part that is missing. The library omits zero points that are all 0.

for base in ("ct-pack-4-zero-points", "ct-pack-4-zero-points-channel", "ct-int8-zero-points"):
    row(base + "-missing", base, "_zero_point", lambda model: removed(*[name for name in model.tensors if name.endswith("_zero_point")])(model))
row("ct-symmetric-activations", "ct-int8", (), config("config_groups", "group_0", "input_activations", value={"num_bits": 8, "dynamic": True, "symmetric": False}), "right")
for order in "group", "dynamic", True:
    row(f"ct-order-{order}-without-index", "ct-pack-4", (UP, "g_idx"), config(*WEIGHTS, "actorder", value=order))
row("ct-groups-of-another-size", "ct-pack-4", (UP, "16 of its columns share a scale"), config(*WEIGHTS, "group_size", value=48))
row("ct-one-scale-in-the-config", "ct-pack-4", (UP, "of its columns share a scale"), config(*WEIGHTS, "strategy", value="channel"))
row("ct-order-of-weights", "ct-pack-4", (), config(*WEIGHTS, "actorder", value="weight"), "right")

# ModelOpt.

row("nvfp4-scale-2-missing", "modelopt-nvfp4", Q, removed(Q + ".weight_scale_2"))
row("nvfp4-scale-missing", "modelopt-nvfp4", Q, removed(Q + ".weight_scale"))
row("nvfp4-scale-2-of-two", "modelopt-nvfp4", Q, reshaped(Q + ".weight_scale_2", (2,)))
row("nvfp4-scale-rows", "modelopt-nvfp4", Q, reshaped(Q + ".weight_scale", (32, 3)))
row("nvfp4-experts-scale-2", "modelopt-nvfp4-experts", EXPERTS + "gate_up_proj", reshaped(EXPERTS + "gate_up_proj_weight_scale_2", (4,)))
row("mxfp8-scale-columns", "modelopt-mxfp8", Q, reshaped(Q + ".weight_scale", (33, 5)))

# GPTQ, AWQ.

row("gptq-qzeros-missing", "gptq-4", Q, removed(Q + ".qzeros"))
row("gptq-symmetric-of-other-zeros", "gptq-4-sym", Q, stored(Q + ".qzeros", "I32", [[0x77777776] * 8] * 3))
row("gptq-scales-missing", "gptq-4", Q, removed(Q + ".scales"))
row("gptq-qweight-missing", "gptq-4", Q, removed(Q + ".qweight"))
row("gptq-scales-groups", "gptq-4", Q, reshaped(Q + ".scales", (2, 72)))
row("gptq-scales-columns", "gptq-4", Q, reshaped(Q + ".scales", (3, 71)))
row("gptq-qzeros-columns", "gptq-4", Q, reshaped(Q + ".qzeros", (3, 8)))
row("gptq-qweight-flat", "gptq-4", Q, reshaped(Q + ".qweight", (12 * 72,)))
row("gptq-qweight-of-floats", "gptq-4", Q, reshaped(Q + ".qweight", (12, 72), "F32"))
row("gptq-g-idx-out-of-range", "gptq-4-desc-act", Q, stored(Q + ".g_idx", "I32", [0] * 159 + [5]), "late")
row("gptq-g-idx-negative", "gptq-4-desc-act", Q, stored(Q + ".g_idx", "I32", [-1] * 160), "late")
row("gptq-g-idx-huge", "gptq-4-desc-act", Q, stored(Q + ".g_idx", "I32", [2**31 - 1] * 160), "late")
row("gptq-g-idx-short", "gptq-4-desc-act", Q, stored(Q + ".g_idx", "I32", [0] * 159))
row("gptq-g-idx-of-floats", "gptq-4-desc-act", Q, stored(Q + ".g_idx", "F32", [0] * 160))
for label, bits in (("0", 0), ("8-for-4", 8), ("huge", 2**63), ("negative", -4), ("text", "four"), ("null", None)):
    row(f"gptq-bits-{label}", "gptq-4", (Q, "bits"), both(config("bits", value=bits), lambda model: model.files.pop("quantize_config.json")), "either")
for label, group in (("0", 0), ("huge", 2**63), ("negative", -7), ("16", 16)):
    row(f"gptq-group-size-{label}", "gptq-4-no-g-idx", (Q, "group_size"),
        both(config("group_size", value=group), lambda model: model.files.pop("quantize_config.json")), "either")
row("gptq-desc-act-without-index", "gptq-4-no-g-idx", "g_idx", config("desc_act", value=True))
row("gptq-desc-act-of-static-groups", "gptq-4-no-g-idx", (), both(config("desc_act", value=True), config("static_groups", value=True)), "right")
row("gptq-desc-act-of-one-group", "gptq-4-one-group", (), config("desc_act", value=True), "right")


# The weight of a Conv1D is [in, out], but libraries store it as the weight of a Linear. A Linear of the same model is
# correct.

CONV = "transformer.h.0.attn.c_attn"


def conv1d(module, **more):
    """Gives the module Q another name, and the model another type."""

    def change(model):
        for names in (model.tensors, model.results):
            for name in [name for name in names if name.startswith(Q + ".")]:
                names[module + name[len(Q):]] = names.pop(name)
        model.config.update(more or {"model_type": "gpt2"})

    return change


for base in ("gptq-4", "awq", "bnb-nf4", "bnb-int8", "gptqmodel-bnb4", "gptqmodel-bnb8"):
    row(base + "-conv1d", base, "Conv1D", conv1d(CONV))
row("gptq-conv1d-of-a-decoder", "gptq-4", "Conv1D", conv1d("decoder." + CONV, model_type="vision-encoder-decoder", decoder={"model_type": "gpt2"}))
row("gptq-conv1d-of-text", "gptq-4", "Conv1D", conv1d("h.0.mlp.c_fc", text_config={"model_type": "imagegpt"}))
row("gptq-linear-of-gpt2", "gptq-4", (), conv1d("vision.q_proj"), "right")
row("gptq-linear-of-gpt-bigcode", "gptq-4", (), conv1d(CONV, model_type="gpt_bigcode"), "right")
for label, rows in (("turned", 64), ("other", 97)):
    row(f"gptq-embeddings-of-{label}-words", "gptqmodel-4-embeddings", ("embed_tokens", "vocab_size"), lambda model, rows=rows: model.config.update(vocab_size=rows))
for layer in ("embed_tokens_per_layer", "wpe", "shared", "token_embedding"):
    row(f"gptq-embeddings-of-{layer}", "gptq-4", ("may be a table of embeddings", layer), conv1d("model." + layer, model_type="llama"))
row("gptq-embeddings-projected", "gptq-4", (), conv1d("model.embedding_projection", model_type="llama"), "right")
row("gptq-embeddings-of-text", "gptqmodel-4-embeddings", (), lambda model: model.config.update(text_config={"vocab_size": model.config.pop("vocab_size")}), "right")
row("gptq-3-bits-of-auto-round", "gptqmodel-3", ("AutoRound", Q), config("provider", value="auto-round"))
row("gptq-3-bits-packed-by-auto-round", "gptqmodel-3", "AutoRound",
    both(config("quant_method", value="auto-round"), config("packing_format", value="auto_round:auto_gptq")))
row("gptq-3-bits-of-auto-round-sym", "gptq-3-sym", (), config("provider", value="auto-round"), "right")
row("gptq-is-marlin", "gptq-4", "marlin", config("is_marlin_format", value=True))
row("gptq-is-not-marlin", "gptq-4", (), config("is_marlin_format", value=False), "right")
row("gptq-name-taken", "gptq-4", Q, added(Q + ".weight", floats("F16", np.ones((72, 96)))))
row("gptq-rows-overflow", "gptq-4", Q, both(reshaped(Q + ".qweight", (2**61, 0)), reshaped(Q + ".qzeros", (3, 0)), reshaped(Q + ".scales", (3, 0)),
                                            removed(Q + ".g_idx", Q + ".bias")))
row("awq-qzeros-missing", "awq", Q, removed(Q + ".qzeros"))
row("awq-of-intel", "auto-round-awq", (), config("quant_method", value="intel/auto-round"), "right")
row("awq-scales-columns", "awq", Q, reshaped(Q + ".scales", (3, 73)))
row("awq-scales-groups", "awq", Q, reshaped(Q + ".scales", (2, 72)))
row("awq-group-size-0", "awq", (Q, "group_size"), config("group_size", value=0), "either")
row("awq-bits-8", "awq", (Q, "bits"), config("bits", value=8))

# bitsandbytes.

STATE = W + ".quant_state.bitsandbytes__nf4"


def state(text):
    return stored(STATE, "U8", list(text if isinstance(text, bytes) else json.dumps(text).encode()))


def state_with(**more):
    def change(model):
        state({**json.loads(model.tensors[STATE].data), **more})(model)

    return change


row("bnb-absmax-short", "bnb-nf4", W, reshaped(W + ".absmax", (14,)))
row("bnb-absmax-missing", "bnb-nf4", W, removed(W + ".absmax"))
row("bnb-absmax-of-bytes", "bnb-nf4", W, reshaped(W + ".absmax", (15,), "U8"))
row("bnb-quant-map-short", "bnb-nf4", W, reshaped(W + ".quant_map", (15,)))
row("bnb-state-missing", "bnb-nf4", W, removed(STATE))
row("bnb-state-is-no-json", "bnb-nf4", W, state(b"{"))
row("bnb-state-is-a-list", "bnb-nf4", W, state([]))
row("bnb-state-is-deep", "bnb-nf4", W, state(b"[" * 500000))
row("bnb-state-is-huge", "bnb-nf4", W, state(b'{"a":"' + b"x" * 3000000 + b'"}'))
row("bnb-state-is-not-utf8", "bnb-nf4", W, state(b'{"quant_type":"\xff"}'))
row("bnb-state-of-another-kind", "bnb-nf4", W, state_with(quant_type="nf5"))
row("bnb-state-shape-larger", "bnb-nf4", W, state_with(shape=[24, 41]))
row("bnb-state-shape-smaller", "bnb-nf4", W, state_with(shape=[24, 20]))
row("bnb-state-shape-overflows", "bnb-nf4", W, state_with(shape=[2**33, 2**33]))
row("bnb-state-shape-negative", "bnb-nf4", W, state_with(shape=[-24, -40]))
row("bnb-state-shape-of-text", "bnb-nf4", W, state_with(shape="24x40"))
for label, block in (("0", 0), ("huge", 2**63), ("negative", -64), ("32", 32)):
    row(f"bnb-block-size-{label}", "bnb-nf4", W, state_with(blocksize=block))
row("bnb-nested-block-size-0", "bnb-nf4-double", W, state_with(nested_blocksize=0))
row("bnb-nested-offset-text", "bnb-nf4-double", W, state_with(nested_offset="x"))
row("bnb-nested-absmax-missing", "bnb-nf4-double", W, removed(W + ".nested_absmax"))
row("bnb-nested-absmax-short", "bnb-nf4-double", W, reshaped(W + ".nested_absmax", (1,)))
row("bnb-nested-map-short", "bnb-nf4-double", W, reshaped(W + ".nested_quant_map", (255,)))
row("bnb-int8-scb-short", "bnb-int8", W, reshaped(Q + ".SCB", (40,)))
row("bnb-int8-weight-missing", "bnb-int8", Q, removed(W))

# MLX.

row("mlx-scales-groups", "mlx-4", Q, reshaped(Q + ".scales", (33, 3)))
row("mlx-scales-rows", "mlx-4", Q, reshaped(Q + ".scales", (32, 2)))
row("mlx-biases-missing", "mlx-4", Q, removed(Q + ".biases"))
row("mlx-biases-of-another-shape", "mlx-4", Q, reshaped(Q + ".biases", (33, 1)))
row("mlx-weight-missing", "mlx-4", Q, removed(Q + ".weight"))
for label, bits in (("5-for-4", 5), ("7", 7), ("0", 0), ("huge", 2**63), ("negative", -4), ("text", "4")):
    row(f"mlx-bits-{label}", "mlx-4", (UP, Q, "bits", "switch_mlp"), config("bits", value=bits), "either")
for label, group in (("0", 0), ("huge", 2**63), ("48", 48)):
    row(f"mlx-group-size-{label}", "mlx-4", (UP, Q, "group_size", "switch_mlp"), config("group_size", value=group), "either")
# 8 bits in groups of 32 fill the same number of words.
row("mlx-key-of-a-part-of-the-name", "mlx-4", Q, config(Q.split(".", 1)[1], value={"bits": 8, "group_size": 32}))
row("mlx-key-of-equal-parameters", "mlx-4", (), config(Q.split(".", 1)[1], value={"bits": 4, "group_size": 64}), "right")
row("mlx-mode-unknown", "mlx-4", ("mode", "nf9"), config("mode", value="nf9"))
row("mlx-width-overflows", "mlx-4", Q, both(reshaped(Q + ".weight", (0, 2**61)), reshaped(Q + ".scales", (0, 2**58)), reshaped(Q + ".biases", (0, 2**58))))

# Schemes that are recognised by name and rejected.


def refused(name, word, quantization, tensors, **files):
    """A checkpoint of a scheme that stfs cannot dequantise."""

    def change(model):
        model.config["quantization_config"] = quantization
        if quantization is None:
            del model.config["quantization_config"]
        model.tensors.update(tensors)
        model.files.update({key.replace("__", "."): value for key, value in files.items()})

    row("refused-" + name, "plain", word, change)


def zeros(dtype, *shape):
    return tensor(dtype, np.zeros(shape))


def tensorrt(model):
    model.config["quantization"] = {"quant_algo": "W4A16_AWQ", "group_size": 128, "has_zero_point": False}
    model.tensors.update({W: zeros("I8", 64, 32), Q + ".weights_scaling_factor": zeros("F16", 64, 1)})


row("refused-engine", "plain", "\"TensorRT-LLM\"", tensorrt)

MODELOPT = {"quant_method": "modelopt"}
refused("modelopt-svdquant", ("svdquant", "pre_quant_scale"), {**MODELOPT, "quant_algo": "NVFP4_SVD"},
        {W: zeros("U8", 8, 32), Q + ".weight_scale": zeros("F8_E4M3", 8, 4), Q + ".weight_scale_2": zeros("F32"),
         Q + ".svdquant_lora_a": zeros("BF16", 4, 64), Q + ".svdquant_lora_b": zeros("BF16", 8, 4)})
CT = variants.ct_config("pack-quantized", variants.ct_weights(4, "group", group=32))
PACKED = {Q + ".weight_packed": zeros("I32", 8, 8), Q + ".weight_scale": zeros("BF16", 8, 2), Q + ".weight_shape": tensor("I64", np.array([8, 64]))}
refused("ct-transform", ("transform", "hadamard"),
        {**CT, "transform_config": {"config_groups": {"u": {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "input"}]}}}}, PACKED)
refused("ct-sparsity", ("sparsity", "sparse"), {**CT, "sparsity_config": {"format": "sparse-24-bitmask", "sparsity_structure": "2:4"}}, PACKED)
refused("ct-marlin-24-of-another-config", "marlin-24", CT, {Q + ".weight_packed": zeros("I32", 4, 16), Q + ".scale_packed": zeros("F16", 2, 8), Q + ".meta": zeros("I16", 8, 4)})
refused("ct-marlin-24", "marlin-24", {**CT, "format": "marlin-24"}, {Q + ".weight_packed": zeros("I32", 4, 16), Q + ".scale_packed": zeros("F16", 2, 8), Q + ".meta": zeros("I16", 8, 4)})
GPTQ_PARTS = {Q + ".qweight": zeros("I32", 10, 32), Q + ".qzeros": zeros("I32", 2, 5), Q + ".scales": zeros("F16", 2, 32)}
refused("gptq-planar", ("gptq_p", "bits"), {"quant_method": "gptq", "bits": 5, "group_size": 32, "checkpoint_format": "gptq_p"}, GPTQ_PARTS)
refused("gptq-marlin", "marlin", {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "marlin", "is_marlin_format": True},
        {Q + ".B": zeros("I32", 4, 64), Q + ".s": zeros("F16", 2, 32), Q + ".workspace": zeros("I32", 4)})
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
refused("awq-gemv", "gemv", {**AWQ, "version": "gemv"}, {Q + ".qweight": zeros("I32", 16, 8), Q + ".qzeros": zeros("I32", 16, 1), Q + ".scales": zeros("F16", 16, 8)})
refused("awq-gemv-fast", "gemv", {**AWQ, "version": "gemv_fast"}, {Q + ".qweight": zeros("I16", 4, 64), Q + ".qzeros": zeros("F16", 8, 16), Q + ".scales": zeros("F16", 8, 16)})
refused("awq-marlin", "marlin", {**AWQ, "version": "marlin"}, {Q + ".qweight": zeros("I32", 4, 32), Q + ".scales": zeros("F16", 2, 16), Q + ".workspace": zeros("I32", 4)})
QUARK = {"quant_method": "quark", "export": {"pack_method": "reorder"}}
refused("quark-int4", "INT4 of Quark", QUARK, {W: zeros("I32", 64, 4), Q + ".weight_scale": zeros("BF16", 64, 1), Q + ".weight_zero_point": zeros("I32", 64, 1)})
refused("quark-mxfp6", "MXFP6 of Quark", QUARK, {W: zeros("U8", 8, 48), Q + ".weight_scale": zeros("U8", 8, 2)})
refused("nunchaku", "Nunchaku", None, {Q + ".qweight": zeros("I8", 128, 32), Q + ".wscales": zeros("BF16", 1, 128), Q + ".smooth_factor": zeros("BF16", 64),
                                       Q + ".proj_down": zeros("BF16", 64, 32), Q + ".proj_up": zeros("BF16", 128, 32)})
refused("quark", "quark", {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int4"}}, "export": {"pack_method": "reorder"}},
        {Q + ".qweight": zeros("I32", 64, 4), Q + ".qzeros": zeros("I32", 2, 4), Q + ".scales": zeros("BF16", 2, 32)})
refused("fp-quant", ("fp_quant", "fp-quant", "hadamard"), {"quant_method": "fp_quant", "forward_dtype": "mxfp4"},
        {Q + ".qweight": zeros("U8", 8, 32), Q + ".scales": zeros("U8", 8, 2), Q + ".forward_hadamard_matrix": zeros("BF16", 32, 32), Q + ".act_global_scale": zeros("F32")})
refused("hqq", "hqq", {"quant_method": "hqq", "quant_config": {"nbits": 4}}, {Q + ".W_q": zeros("U8", 8, 32), Q + ".scale": zeros("BF16", 8, 2), Q + ".zero": zeros("BF16", 8, 2), Q + ".nbits": zeros("U8")})
refused("quanto", "quanto", {"quant_method": "quanto"}, {Q + ".weight._data": zeros("I8", 8, 32), Q + ".weight._scale": zeros("BF16", 8, 1)}, quanto_qmap__json={Q: {"weights": "qint8"}})
refused("torchao", "torchao", {"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8WeightOnlyConfig"}}},
        {Q + "._weight_qdata": zeros("F8_E4M3", 8, 32), Q + "._weight_scale": zeros("F32", 8, 1)})
refused("exl3", ("exl3", "trellis"), {"quant_method": "exl3", "bits": 4.0}, {Q + ".trellis": zeros("I16", 2, 4, 64), Q + ".suh": zeros("F16", 32), Q + ".svh": zeros("F16", 64)})
refused("exl3-without-config", ("exl3", "trellis"), None, {Q + ".trellis": zeros("I16", 2, 4, 64), Q + ".suh": zeros("F16", 32), Q + ".svh": zeros("F16", 64)})
refused("aqlm", ("aqlm", "codebooks"), {"quant_method": "aqlm", "nbits_per_codebook": 16}, {Q + ".codes": zeros("I16", 8, 4, 1), Q + ".codebooks": zeros("F16", 1, 16, 1, 8), Q + ".scales": zeros("F16", 8, 1, 1, 1)})
refused("vptq", "vptq", {"quant_method": "vptq"}, {Q + ".indices": zeros("I32", 1, 4, 8), Q + ".centroids.weight": zeros("BF16", 1, 64)})
refused("higgs", "higgs", {"quant_method": "higgs", "bits": 4}, {W: zeros("I16", 8, 32), Q + ".scales": zeros("F16", 8, 2), Q + ".tables": zeros("F16", 16, 2)})
refused("spqr", "spqr", {"quant_method": "spqr", "bits": 3}, {Q + ".dense_weights": zeros("I64", 32), Q + ".row_offsets": zeros("I32", 9), Q + ".col_vals": zeros("I32", 4)})
refused("bitnet", "bitnet", {"quant_method": "bitnet"}, {W: zeros("U8", 8, 32), Q + ".weight_scale": zeros("BF16", 1)})
refused("eetq", "eetq", {"quant_method": "eetq"}, {W: zeros("I8", 32, 8), Q + ".weight_scales": zeros("F16", 8)})
refused("unknown-method", "newest", {"quant_method": "newest"}, {W: zeros("U8", 8, 32)})
# Synonyms of known words, and a config that states a thing twice.


def twice(model):
    groups = model.config["quantization_config"]["config_groups"]
    groups["group_1"] = dict(next(iter(groups.values())))


row("ct-two-groups-of-equal-bits", "ct-pack-4", (), twice, "right")
row("fp8-method-mxfp8", "fp8-block-mxfp8-u8", (), config("quant_method", value="mxfp8"), "right")
# An unknown format, and types that contradict the config.
for form in ("mixfp4-pack-quantized", "mixed-fp4-int4-pack-quantized", "lut-b-quantized"):
    row(f"ct-format-{form}", "ct-nvfp4", form, config("format", value=form))
row("ct-format-of-a-group", "ct-pack-4", "mixfp4-pack-quantized", both(config("format", value="mixed-precision"), config("config_groups", "group_0", "format", value="mixfp4-pack-quantized")))
row("ct-format-is-a-version", "ct-pack-4", (), both(config("format", value=None), config("version", value="0.12.3")), "right")
row("ct-float-in-i8", "ct-float-channel", (Q, "config.json"), lambda model: [reshaped(f"{LAYER}self_attn.{name}.weight", (29, 37), "I8")(model) for name in ("q_proj", "k_proj")])
row("ct-int-in-fp8", "ct-int8", (Q, "config.json"), lambda model: [reshaped(f"{LAYER}self_attn.{name}.weight", (37, size), "F8_E4M3")(model)
                                                                 for name, size in (("q_proj", 53), ("k_proj", 53), ("v_proj", 96))])
row("fp8-e5m2-in-the-config", "fp8-block-f32", ("e5m2", KV), config("fmt", value="e5m2"))
row("fp8-e4m3-in-the-config", "fp8-channel", ("e4m3", UP), both(config("fmt", value="float8_e4m3fn"), reshaped(UP + ".weight", (67, 40), "F8_E5M2")))
for label, base in (("modelopt", "modelopt-fp8"), ("fp8", "fp8-tensor-one"), ("fbgemm", "fbgemm")):
    row(f"fp8-in-i8-of-{label}", base, "I8", lambda model: [reshaped(name, each.shape, "I8")(model) for name, each in list(model.tensors.items()) if each.dtype == "F8_E4M3"])

row("ct-spinquant", "ct-pack-4", "spinquant_config", config("spinquant_config", value={"r1": True}))

# Rotated weights look like other weights, so only a key of the config shows the rotation. The key without a value
# means that there is no rotation.

HADAMARD = {"block_size": 32, "hadamard_type": "hadamard"}
QUARK = {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32, "scale_format": "e8m0"}}, "exclude": ["lm_head"],
         "export": {"pack_method": "reorder", "weight_format": "real_quantized"}, "layer_quant_config": {}, "quant_mode": "eager_mode"}


def beside_quantization(key, value):
    return lambda model: model.config.update({key: value})


def quark(*algorithms):
    """MXFP4 of Quark."""
    return lambda model: model.config.update(quantization_config={**QUARK, "algo_config": list(algorithms)})


for key, base, value in (("rotation_config", "auto-round", HADAMARD), ("hadamard_config", "auto-round", HADAMARD), ("rotation", "gptq-4", "hadamard"),
                         ("rotation", "gptqmodel-fp8-row", "random"), ("rotation_config", "auto-round-mxfp4", {"algorithm": "spinquant", "r1": True})):
    row(f"{key.replace('_', '-')}-of-{base}", base, key, config(key, value=value))
    for label, nothing in (("null", None), ("empty", {}), ("false", False)):
        row(f"{key.replace('_', '-')}-of-{base}-{label}", base, (), config(key, value=nothing), "right")
row("rotation-of-a-module", "gptqmodel-4-dynamic", '"rotation"', config("dynamic", "-:.*visual.*", value={"rotation": "hadamard"}))
row("rotation-in-a-group", "ct-pack-4", "transform_config", config("config_groups", "group_0", "transform_config", value={"u": {"type": "hadamard"}}))
row("rotation-beside-the-quantisation", "auto-round", "rotation_config", beside_quantization("rotation_config", HADAMARD))
row("rotation-beside-the-quantisation-of-the-text", "ct-kimi-k2", "spinquant_config", lambda model: model.config["text_config"].update(spinquant_config={"r1": True}))
row("rotation-of-quark-online", "modelopt-mxfp4", "online_r1_rotation", quark({"name": "rotation", "r1": True, "r4": False, "online_r1_rotation": True}))
row("rotation-of-quark-r4", "modelopt-mxfp4", '"r4"', quark({"name": "awq"}, {"name": "rotation", "r1": True, "r2": True, "r4": True, "online_r1_rotation": False}))
row("rotation-of-quark-quarot", "modelopt-mxfp4", "quarot", quark({"name": "quarot"}))
row("rotation-of-quark-folded", "modelopt-mxfp4", (), quark({"name": "rotation", "r1": True, "r2": True, "r3": False, "r4": False, "online_r1_rotation": False}), "right")

row("rotation-of-mlx", "mlx-4", '"rotation"', config("rotation", value="hadamard"))
row("rotation-of-mlx-quarot", "mlx-4", "quarot", config("quarot", value=True))
row("rotation-of-a-module-of-mlx", "mlx-4", '"rotation"', config(Q, value={"bits": 4, "group_size": 64, "rotation": "hadamard"}))
row("rotation-of-a-part", "fp8-block-f32", "rotation_config", lambda model: model.config.update(text_config={"quantization_config": {"rotation_config": HADAMARD}}))
row("rotation-of-a-part-of-a-part", "fp8-block-f32", "hadamard_config",
    lambda model: model.config.update(thinker_config={"llm_config": {"quantization_config": {"hadamard_config": HADAMARD}}}))
row("rotation-word-beside-the-quantisation", "fp8-block-f32", '"rotation"', beside_quantization("rotation", "hadamard"))
row("rotation-of-pictures", "fp8-block-f32", (), beside_quantization("vision_config", {"rotation": 90, "quarot": None}), "right")
row("rotation-beside-modelopt", "fp8-channel", "spinquant_config",
    lambda model: (model.config.pop("quantization_config"), model.config.update(spinquant_config={"a": 1}),
                   model.files.update({"hf_quant_config.json": {"quantization": {"quant_algo": "FP8"}}})))

# Statements of the config about GPTQModel's FP8 and about the scales of FP4.

row("ct-int8-semantics", "ct-int8", "weight_scale_semantics", config("weight_scale_semantics", value="inverse"))
row("fp8-semantics-of-a-part", "gptqmodel-fp8-row", "weight_scale_semantics", lambda model: model.config.update(text_config={"quantization_config": {"quant_method": "gptq"}}))

row("fp8-semantics-unknown", "gptqmodel-fp8-row", "weight_scale_semantics", config("weight_scale_semantics", value="direct"))
row("fp8-semantics-of-another-scale", "fp8-channel", UP, config("weight_scale_semantics", value="inverse"))
row("nvfp4-ue5m3", "auto-round-mxfp4", ("UE5M3", UP), both(config("data_type", value="nvfp4_v2"), config("act_data_type", value="nvfp4_v2")))
row("nvfp4-ue5m3-untold", "auto-round-mxfp4", ("UE5M3", UP), lambda model: model.config["quantization_config"].pop("data_type"))
row("nvfp4-ue5m3-of-a-module", "auto-round-mxfp4", ("UE5M3", UP), config("extra_config", value={UP: {"data_type": "nvfp4_v2"}}))
row("nvfp4-ue5m3-of-compressed-tensors", "ct-mxfp4", ("UE5M3", Q), config("format", value="nvfp4-e5m3-pack-quantized"))
row("nvfp4-ue5m3-of-a-group", "ct-mxfp4", ("UE5M3", Q), both(config("format", value="mixed-precision"), config("config_groups", "group_0", "format", value="nvfp4-e5m3-pack-quantized")))
row("nvfp4-mxfp4-of-a-group", "ct-mxfp4", (), both(config("format", value="mixed-precision"), config("config_groups", "group_0", "format", value="mxfp4-pack-quantized")), "right")

# In some files only a text in the header shows the rotation.


def with_header(**texts):
    return metadata(**{key: text if isinstance(text, str) else json.dumps(text) for key, text in texts.items()})


UNSLOTH = {"base_model_id": "a/b", "scheme": "int8", "activation_rotation": "convrot_hadamard_v1", "activation_rotation_group": 256, "activation_rotation_fqns": ["l"]}
for label, base, word, texts in (("size", "ct-int8", "hadamard_group_size", {"hadamard_group_size": "128"}), ("unsloth", "torchao-int8", "activation_rotation", {"unsloth_metadata": UNSLOTH}), ("convrot", "ct-int8", "convrot", {"convrot": "true"}),
                                 ("deep", "ct-int8", "hadamard_block", {"about": {"layers": [{"w": {"hadamard_block": 32}}]}}), ("value", "ct-int8", "int8_convrot", {"scheme": "int8_convrot"}),
                                 ("value-in-json", "fp8-channel", "quarot_v2", {"about": {"scheme": ["quarot_v2"]}}), ("upper-case", "fp8-no-scales", "Hadamard", {"Hadamard": "32"}),
                                 ("name", "fp8-channel", "quarot", {"quantization": {"name": "quarot"}}), ("transform", "fp8-channel", "hadamard", {"quantization_config": {"transform": {"name": "hadamard"}}}),
                                 ("properties", "ct-int8", "hadamard_properties", {"hadamard_properties": "1"}), ("angles", "ct-int8", "weight_rotations", {"weight_rotations": "1"}),
                                 ("text-in-a-text", "ct-int8", "rotation", {"about": {"more": json.dumps({"rotation": "r1"})}})):
    row(f"rotation-of-the-header-{label}", base, word, with_header(**texts))
row("rotation-of-the-header-without-one", "ct-int8", (), lambda model: model.metadata.update(
    convrot="false", about=json.dumps({"rotation": None, "activation_rotation": "", "convrot_groupsize": 256, "rotary_base": 10000}), note="no Hadamard rotation"), "right")
# Rotations of positions and of pictures, and free text.
row("rotation-of-the-header-of-others", "ct-int8", (), lambda model: model.metadata.update(
    rope_rotation="interleaved", rotation_angle="90", ss_tag_frequency=json.dumps({"a": {"rotated": 3, "rotation": 2}}),
    training_args=json.dumps({"augment": {"rotation": 15}}), author="convrot", title="QuaRot", base_model="a/b-hadamard",
    about=json.dumps({"rotary": {"rope_rotation": "neox"}})), "right")
row("rotation-of-positions", "fp8-block-f32", (), beside_quantization("rope_parameters", {"rotation": "half", "rope_type": "default"}), "right")
row("rotation-of-none", "gptq-4", (), config("rotation", value="none"), "right")
row("rotation-of-the-config-by-another-name", "ct-int8", "activation_rotation", config("activation_rotation", value="hadamard"))

# A part of a quantised weight that stfs does not use.

for label, base, name in (("new-scale", "fp8-channel", UP + ".weight_new_scale"), ("zero", "fp8-channel", UP + ".zeros"), ("zp", "fp8-channel", UP + ".weight_zp"),
                          ("absmax", "bnb-int8", Q + ".weight_absmax"), ("chan-scale", "fp8-channel", UP + ".weight_chan_scale"),
                          ("g-idx", "awq", Q + ".g_idx"), ("fp8-scale", "auto-round", UP + ".w_bf16_to_fp8_scale"), ("chan-scale-of-nvfp4", "ct-nvfp4", Q + ".weight_chan_scale"),
                          ("scale-of-experts", "fp8-block-fused-experts", EXPERTS + "down_proj_extra_scale"), ("rotation", "auto-round-mxfp4", UP + ".spinquant_r1_matrix"),
                          ("zero-point-of-fp8", "fp8-channel", UP + ".weight_zero_point"), ("scale-of-gpt-oss", "gpt-oss", EXPERTS + "down_proj_scale_2"),
                          ("scale-of-mlx", "mlx-4", Q + ".global_scale"), ("offset", "ct-int8", Q + ".weight_offset"), ("min", "ct-int8", Q + ".weight_min"),
                          ("shift", "ct-int8", Q + ".weight_shift"), ("perm", "ct-int8", Q + ".perm"), ("outliers", "ct-int8", Q + ".outliers"),
                          *((name.replace("_", "-"), "ct-int8", Q + "." + name) for name in (
                              "svd_up", "svd_down", "lora_up.weight", "lora_down.weight", "proj_up", "proj_down", "low_rank_a", "weight_codebook", "weight_correction",
                              "weight_residual", "weight_sparse", "weight_delta", "weight.values", "outlier_values", "weight_quantizer._amax", "scaling", "weight_perm", "inv_perm", "q_invperm", "permutation", "weight_order", "col_order", "order", "smooth_factor", "smoothing",
                              "lut", "weight_lut")),
                          ("upper-case", "fp8-channel", UP + ".Weight_Scale_3"),
                          ("scale-2-of-experts", "modelopt-nvfp4", EXPERTS + "gate_up_proj_weight_scale_2"), ("scale-of-w13", "fp8-channel", EXPERTS + "w13_weight_scale"),
                          ("offset-only", "fp8-channel", EXPERTS + "0.weight_offset"), ("torchao-scale-only", "torchao-float8", EXPERTS + "n._weight_per_tensor_scale")):
    row("leftover-" + label, base, name, added(name, floats("F32", np.ones(1))))
row("leftover-of-the-module", "gptq-4", (Q + ".R1", "and 1 more", "not a known part of its values"), lambda model: [
    model.passes(Q + name, floats("F16", np.ones(shape))) for name, shape in ((".R1", (3, 2)), (".su", (5,)))], "warned")
row("leftover-norms-of-fp8-without-scales", "fp8-no-scales", (), lambda model: [
    model.passes(name, floats("F32", 2)) for name in ("guidance.norms.0.scale", "blocks.0.norm1.scale", "final_norm_scale", "ln1.scale", "vae.timestep_scale_multiplier",
                                                      "blocks.0.scale_factor")], "silent")
row("leftover-scales-of-other-modules", "fp8-no-scales", ("double_blocks.0.img_mlp.0.weight", "quant.scales.a", "FP8 without a scale"), lambda model: model.passes("quant.scales.a", floats("F32", 2)), "warned")
row("leftover-svd-of-fp8-without-scales", "fp8-no-scales", "svd_up", added("double_blocks.0.img_mlp.0.svd_up", floats("F32", np.ones((31, 1)))))
row("leftover-scales", "fp8-channel", EXPERTS + "n.scales", added(EXPERTS + "n.scales", floats("BF16", np.ones((2, 2)))))
# Parameters of a model with names like scales.
row("leftover-of-the-model", "fp8-channel", (), lambda model: [
    model.passes(variants.LAYER + name, floats("BF16", np.ones(3)))
    for name in ("mlp.gate.e_score_correction_bias_2", "residual", "mlp.proj_up.weight", "post_norm.scale", "attn.logit_scale", "layer_scale1.gamma", "layer_scale", "mlp.router.scale", "mlp.router.per_expert_scale",
                 "self_attn.per_dim_scale", "altup.correct_output_scale", "zero_conv.weight", "mlp.up_proj_norm.scale", "self_attn.position_offset",
                 "rel_pos_bias", "norm.scales", "sort.order", "mlp.perm", "color.lut", "smooth.weight", "self_attn.sampling_offsets.bias", "permute", "conv.shift", "x_min")], "right")
# Tensors with names of scales in places where they are not scales.
row("leftover-of-the-model-by-shape", "fp8-channel", (), lambda model: [
    model.passes(variants.LAYER + name, floats("BF16", np.ones(64)))
    for name in ("self_attn.q_scale", "self_attn.v_scale", "mlp.k_scale", "adapter.output_scale", "self_attn.input_scale", "adapter_input_scale")], "right")
row("leftover-of-the-model-in-a-row", "fp8-channel", (), lambda model: [
    model.passes(variants.LAYER + "self_attn." + name, floats("BF16", np.ones((1, 64)))) for name in ("q_scale", "k_scale")], "right")
row("leftover-of-the-model-by-place", "fp8-channel", (), lambda model: [
    model.passes(variants.LAYER + name, floats("BF16", 1))
    for name in ("mlp.k_scale", "mlp.output_scale", "vision.input_scale", "adapter_activation_scale", "mlp.input_zero_point")], "right")
row("leftover-of-the-model-by-type", "fp8-channel", (), lambda model: model.passes(variants.LAYER + "self_attn.k_scale", tensor("I64", np.ones(1))), "right")
row("leftover-output-scale-of-rows", "fp8-channel", UP + ".output_scale", added(UP + ".output_scale", floats("F32", np.ones(67))))
row("leftover-that-vanishes-by-head", "fp8-channel", (), lambda model: [
    model.put(variants.LAYER + name, floats("F32", np.ones(shape)))
    for name, shape in (("self_attn.q_scale", (4, 1, 1)), ("self_attn.k_scale", (1, 2, 1, 1)), ("mlp.up_proj.k_scale", (8,)), ("SelfAttention.v_scale", (1,)))], "right")
row("leftover-that-vanishes-by-expert", "fp8-block-fused-experts", (), lambda model: [
    model.put(name, floats("F32", np.ones(model.results[name.removesuffix("_input_scale")].values.shape[0])))
    for name in [EXPERTS + "gate_up_proj_input_scale", EXPERTS + "down_proj_input_scale"]], "right")
row("leftover-that-vanishes-under-older-names", "fp8-channel", (), lambda model: [
    model.put(variants.LAYER + "mlp.up_proj." + name, floats("F32", 1)) for name in ("act_scale", "input_quantizer._amax", "output_quantizer._amax")], "right")
row("leftover-that-vanishes", "fp8-channel", (), lambda model: [
    model.put(variants.LAYER + name, floats("F32", 1))
    for name in ("mlp.up_proj.input_scale", "self_attn.k_scale", "self_attn.v_scale", "mlp.up_proj.output_scale", "mlp.up_proj.output_zero_point")], "right")

# The target of a module decides its config group, even if other groups would fit.

row("ct-target-of-a-later-group", "ct-pack-targets", UP, config("config_groups", "group_2", "targets", value=[UP]))

# Orders and sizes that look correct.

row("bnb-int8-weight-format", "bnb-int8", W, stored(Q + ".weight_format", "U8", 1))
row("bnb-nested-absmax-long", "bnb-nf4-double", W, lambda model: reshaped(W + ".nested_absmax", (len(model.tensors[W + ".nested_absmax"].data) // 4 + 1,))(model))
row("mlx-biases-turned", "mlx-4", Q, lambda model: reshaped(Q + ".biases", model.tensors[Q + ".biases"].shape[::-1])(model))
row("mlx-biases-flat", "mlx-4", Q, lambda model: reshaped(Q + ".biases", (len(model.tensors[Q + ".biases"].data) // 2,))(model))


# Codes that no known scheme uses: Marlin, QuIP#, SmoothQuant's OPT, and Ollama's form of MLX.


def passes(name, each):
    return lambda model: model.passes(name, each)


def ollama(key):
    def change(model):
        model.put(W, tensor("U32", np.ones((8, 8))))
        model.put(W + ".scale", floats("BF16", np.ones((8, 1))))
        model.put(W + ".bias", floats("BF16", np.ones((8, 1))))
        model.metadata[key] = "int4"

    return change


MARLIN = both(passes(UP + ".B", tensor("I32", np.ones((2, 32)))), passes(UP + ".s", floats("F16", np.ones((1, 16)))))
SMOOTH = both(*(passes(f"{EXPERTS}{i}.weight", tensor("I8", np.ones((4, 4)))) for i in range(2)), passes(EXPERTS + "0.a", floats("F32", 0.01)))
row("leftover-marlin", "plain", (UP + ".B", "I32 [2,32]", "no known quantisation scheme"), MARLIN, "warned")
row("leftover-marlin-beside-others", "ct-pack-4", (EXPERTS, "1 more of integers", "I8 [4,4]"), SMOOTH, "warned")
row("leftover-flat", "plain", ("extra.weight", "U8 [64]", "no known quantisation scheme"), passes("extra.weight", tensor("U8", np.ones(64))), "warned")
row("leftover-fp4-only", "plain", ("extra.weight", "F4 [4,8]", "no known quantisation scheme"), passes("extra.weight", Tensor("F4", (4, 8), bytes(16))), "warned")
row("leftover-quip", "plain", "QuIP#", passes(UP + ".Qidxs", tensor("I64", np.ones((4, 2)))))
for key in ("quant_type", W + ".quant_type"):
    row(f"leftover-ollama-{len(key)}", "plain", 'quant_type "int4"', ollama(key))
