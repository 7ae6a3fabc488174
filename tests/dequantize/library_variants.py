"""Variants of single libraries: ComfyUI's tiles, torchao's classes, scaled inputs of ModelOpt, names of GPTQModel, MLX in a text_config."""

import json

import numpy as np

import number_types as numbers
import schemes
from checkpoint import Tensor, floats, tensor
from packed_variants import mlx_config
from registry import LAYER, dress, variant
from scaled_variants import modelopt, multiplied

F32 = np.float32


def tiles(bytes_):
    """Returns a matrix of bytes in tiles of 128 rows and 4 columns, as cuBLAS reads scales, padded with zeros."""
    lead, (rows, columns) = bytes_.shape[:-2], bytes_.shape[-2:]
    down, across = schemes.blocks(rows, 128), schemes.blocks(columns, 4)
    out = np.zeros((*lead, down * across * 512), np.uint8)
    row, column = np.arange(rows)[:, None], np.arange(columns)[None, :]
    place = (row // 128 * across + column // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
    out[..., place] = bytes_
    return out.reshape(*lead, down * 128, across * 4)


def high_first(codes):
    """Packs 4-bit codes along the last axis into bytes, with the first code in the high bits."""
    return (codes[..., 0::2] << 4 | codes[..., 1::2]).astype(np.uint8)


def by_column(values, scale, model, name):
    """Scales the columns of a weight by the tensor that scales the inputs of the layer."""
    model.put(name, scale)
    return schemes.times(values, scale.values())


# ComfyUI.


def comfy_mark(model, module, form, in_header=False, **more):
    about = {"format": form, **more}
    if in_header:
        whole = json.loads(model.metadata.get("_quantization_metadata", '{"format_version": "1.0", "layers": {}}'))
        whole["layers"][module] = about
        model.metadata["_quantization_metadata"] = json.dumps(whole)
        model.hides.add("_quantization_metadata")
    else:
        model.put(module + ".comfy_quant", tensor("U8", np.frombuffer(json.dumps(about).encode(), np.uint8)))


def comfy_nvfp4(model, draw, module, shape, whole=(), scale_dtype="F8_E4M3", in_header=False, smooth=False):
    codes = draw.integers(0, 16, shape)
    scales, values = draw.scales("F8_E4M3", (*shape[:-1], shape[-1] // 16))
    factor = np.asarray(draw.rng.uniform(1e-5, 1e-2, whole), F32)
    weight = module + ".weight"
    inputs = [model.put(weight, tensor("U8", high_first(codes))),
              model.put(weight + "_scale", tensor(scale_dtype, tiles(scales.array()))),
              model.put(weight + "_scale_2", floats("F32", factor))]
    model.put(module + ".input_scale", floats("F32", 0.25))
    comfy_mark(model, module, "nvfp4", in_header)
    values = schemes.times(values, factor.reshape(*whole, *[1] * (values.ndim - len(whole))))
    result = schemes.times(numbers.E2M1[codes], np.repeat(values, 16, axis=-1))
    if smooth:
        result = by_column(result, draw.floats("BF16", shape[-1:]), model, module + ".pre_quant_scale")
        inputs.append(module + ".pre_quant_scale")
    model.computed(weight, result, inputs)


@variant
def comfy_nvfp4_tiles(model, draw):
    """The first code is in the high bits of a byte. The scales are in tiles, with more and fewer rows than a tile, and padded columns."""
    dress(model, draw, "FluxForCausalLM")
    comfy_nvfp4(model, draw, "double_blocks.0.img_attn.qkv", (144, 96))
    comfy_nvfp4(model, draw, "double_blocks.0.img_attn.proj", (48, 64), scale_dtype="U8")
    comfy_nvfp4(model, draw, "double_blocks.0.img_mlp.0", (272, 320), smooth=True)
    model.passes("double_blocks.0.img_attn.qkv.bias", draw.floats("BF16", (144,)))
    comfy_nvfp4(model, draw, "blocks.0.experts.up", (3, 32, 48), whole=(3,))


@variant
def comfy_formats_in_the_header(model, draw):
    """NVFP4, FP8, MXFP8 and INT8 in one file."""
    dress(model, draw, "FluxForCausalLM")
    comfy_nvfp4(model, draw, "blocks.0.attn.qkv", (160, 128), in_header=True)
    module = "blocks.0.attn.proj"
    schemes.fp8_with(model, draw, module + ".weight", (33, 65), module + ".weight_scale", (), "F32", positive=True)
    comfy_mark(model, module, "float8_e4m3fn", True, full_precision_matrix_mult=True)
    for number, dtype in enumerate(("F8_E8M0", "U8")):
        module = f"blocks.{number}.mlp.up"
        codes = draw.f8_codes((160, 192))
        scales, values = draw.scales(dtype, (160, 6))
        inputs = [model.put(module + ".weight", tensor("F8_E4M3", codes)),
                  model.put(module + ".weight_scale", tensor(dtype, tiles(scales.array())))]
        comfy_mark(model, module, "mxfp8", True)
        model.computed(module + ".weight", schemes.times(numbers.E4M3[codes], np.repeat(values, 32, axis=-1)), inputs)
    for name, shape in (("one", ()), ("each", (24, 1))):
        module = f"blocks.0.int8.{name}"
        codes = draw.integers(-128, 128, (24, 40))
        scales, values = draw.scales("F32", shape, positive=True)
        inputs = [model.put(module + ".weight", tensor("I8", codes)), model.put(module + ".weight_scale", scales)]
        comfy_mark(model, module, "int8_tensorwise", True, convrot=False, convrot_groupsize=256)
        model.computed(module + ".weight", schemes.times(codes, values), inputs)


@variant
def comfy_awq(model, draw):
    """awq_w4a16: the value is (code - 8) * scale + zero; scales and zeros are [groups, rows]."""
    dress(model, draw, "QwenImageForCausalLM")
    for number, (shape, group, dtype) in enumerate((((24, 128), 64, "BF16"), ((35, 96), 32, "F32"), ((48, 192), 64, "F16"))):
        module = f"blocks.{number}.mod"
        codes = draw.spread(draw.integers(0, 16, shape), [0, 15, 8])
        (scales, values), (zeros, least) = (draw.scales(dtype, (shape[1] // group, shape[0])) for _ in range(2))
        inputs = [model.put(module + ".weight", tensor("I8", schemes.nibbles(codes).view("i1"))),
                  model.put(module + ".weight_scale", scales), model.put(module + ".weight_zeros", zeros)]
        comfy_mark(model, module, "awq_w4a16", number == 1, group_size=group)
        with np.errstate(all="ignore"):
            result = schemes.times(codes - 8, np.repeat(values.T, group, axis=1)) + np.repeat(least.T, group, axis=1)
        model.computed(module + ".weight", result, inputs)


# torchao.


def dtype_json(name):
    return {"_type": "torch.dtype", "_data": name}


def torchao_weight(model, module, kind, parts, values, **data):
    name, base = module + ".weight", module + "._weight_"
    shown = [part for part in parts if not part.startswith("act_quant") and part != "act_per_tensor_scale"]
    for part, each in parts.items():
        model.put(base + part, each)
    about = {"_type": kind, "_data": {"dtype": dtype_json("bfloat16"), **data}, "_tensor_data_names": list(parts)}
    torchao_metadata(model, name, about)
    model.computed(name, values, [base + part for part in shown])


def torchao_metadata(model, name, about):
    names = json.loads(model.metadata.get("tensor_names", "[]"))
    model.metadata[name] = json.dumps(about)
    model.metadata["tensor_names"] = json.dumps([*names, name])
    model.hides |= {name, "tensor_names"}


def torchao(model, draw, kind):
    model.shards = 3
    dress(model, draw, "LlamaForCausalLM", {"quant_method": "torchao", "quant_type": {"default": {"_type": kind, "_data": {}}}})
    torchao_metadata(model, "model.norm.weight", {"_type": "Tensor"})


def torchao_scales(draw, dtype, grid, shape, block):
    scales, values = draw.scales(dtype, grid)
    return scales, schemes.spread_blocks(values, shape, block) if values.ndim == len(shape) else values


@variant
def torchao_float8(model, draw):
    torchao(model, draw, "Float8WeightOnlyConfig")
    for name, shape, grid, block in (("q_proj", (37, 53), (37, 1), [1, 53]), ("k_proj", (37, 53), (1, 1), [37, 53]), ("v_proj", (9, 8), (), []),
                                     ("o_proj", (256, 384), (2, 3), [128, 128]), ("experts", (3, 17, 24), (3, 17, 1), [1, 1, 24])):
        codes = draw.f8_codes(shape)
        scales, values = torchao_scales(draw, "F32", grid, shape, block)
        torchao_weight(model, f"{LAYER}self_attn.{name}", "Float8Tensor", {"qdata": tensor("F8_E4M3", codes), "scale": scales},
                       schemes.times(numbers.E4M3[codes], values), block_size=block, mm_config={"_type": "Float8MMConfig", "_data": {}})


@variant
def torchao_int8(model, draw):
    """Int8Tensor with zero points and scaled inputs, and codes of fewer bits that are stored as I8."""
    torchao(model, draw, "Int8WeightOnlyConfig")
    for name, zero, smooth in (("q_proj", None, False), ("k_proj", "I8", True), ("v_proj", None, True)):
        shape = (35, 64)
        codes = draw.spread(draw.integers(-128, 128, shape), [-128, 127, 0])
        scales, values = torchao_scales(draw, "F32", (35, 1), shape, [1, 64])
        parts = {"qdata": tensor("I8", codes), "scale": scales}
        zeros = np.zeros((35, 1), np.int64)
        if zero:
            zeros = draw.integers(-128, 128, (35, 1))
            parts["zero_point"] = tensor(zero, zeros)
        result = schemes.times(codes - zeros, values)
        if smooth:
            parts["act_pre_scale"] = draw.floats("BF16", (64,))
            parts["act_quant_scale"] = floats("F32", [[0.5]])
            result = schemes.times(result, parts["act_pre_scale"].values())
        torchao_weight(model, f"{LAYER}self_attn.{name}", "Int8Tensor", parts, result, block_size=[1, 64])
    shape, group = (19, 96), [1, 32]
    codes = draw.integers(-8, 8, shape)
    scales, values = torchao_scales(draw, "BF16", (19, 3), shape, group)
    zeros = floats("BF16", draw.rng.integers(-8, 8, (19, 3)))
    result = schemes.times(codes - schemes.spread_blocks(zeros.values(), shape, group), values)
    torchao_weight(model, LAYER + "mlp.up_proj", "IntxUnpackedToInt8Tensor", {"qdata": tensor("I8", codes), "scale": scales, "zero_point": zeros},
                   result, block_size=group, target_dtype=dtype_json("int4"), activation_quantization=None)


@variant
def torchao_int4(model, draw):
    """Int4Tensor: the value is code * scale + zero point; scales and zero points are [groups, rows]."""
    torchao(model, draw, "Int4WeightOnlyConfig")
    for name, shape, group, dtype, smooth in (("q_proj", (37, 256), 128, "BF16", False), ("k_proj", (24, 96), 32, "F16", True),
                                              ("v_proj", (70, 80), 64, "F32", False), ("experts", (3, 20, 128), 64, "BF16", False)):
        codes = draw.spread(draw.integers(-8, 8, shape), [-8, 7, 0])
        groups = schemes.blocks(shape[-1], group)
        grid = (*shape[:-2], groups, shape[-2])
        (scales, values), (zeros, least) = draw.scales(dtype, grid), draw.scales(dtype, grid)
        values, least = (np.swapaxes(each, -1, -2)[..., np.arange(shape[-1]) // group] for each in (values, least))
        with np.errstate(all="ignore"):
            result = schemes.times(codes, values) + least
        packed = (codes[..., 0::2] & 15 | codes[..., 1::2] << 4).astype(np.int8)
        parts = {"qdata": tensor("I8", packed), "scale": scales, "zero_point": zeros}
        if smooth:
            parts["act_pre_scale"] = draw.floats("F16", shape[-1:])
            result = schemes.times(result, parts["act_pre_scale"].values())
        torchao_weight(model, f"{LAYER}self_attn.{name}", "Int4Tensor", parts, result, shape=list(shape),
                       block_size=[*[1] * (len(shape) - 1), group], activation_dtype=dtype_json("bfloat16"))


def swizzled(scales):
    """Returns the tiles of all matrices, stacked, in the shape that torchao uses."""
    array = scales.array()
    flat = tiles(array.reshape(-1, array.shape[-1]))
    lead = array.shape[:-2]
    return tensor(scales.dtype, flat.reshape(*lead, -1, schemes.blocks(array.shape[-1], 4) * 16))


@variant
def torchao_groups(model, draw):
    """NVFP4Tensor and MXTensor with scales in rows and in tiles, and an NVFP4Tensor without a scale for the whole tensor."""
    torchao(model, draw, "NVFP4WeightOnlyConfig")
    for name, shape, in_tiles, whole in (("q_proj", (160, 96), True, ()), ("k_proj", (33, 48), False, ()), ("v_proj", (40, 64), True, None),
                                         ("experts", (3, 128, 64), True, ()), ("experts_of_tiles", (3, 128, 64), True, (3, 1, 1)), ("experts_of_rows", (3, 20, 64), False, (3, 1, 1))):
        codes = draw.integers(0, 16, shape)
        scales, values = draw.scales("F8_E4M3", (*shape[:-1], shape[-1] // 16))
        packed = schemes.nibbles(codes)
        parts = {"qdata": Tensor("F4", shape, packed.tobytes()) if name == "k_proj" else tensor("U8", packed),
                 "scale": swizzled(scales) if in_tiles else scales}
        if whole is not None:
            factor = np.asarray(draw.rng.uniform(1e-5, 1e-2, whole), F32)
            parts["per_tensor_scale"] = floats("F32", factor)
            parts["act_per_tensor_scale"] = floats("F32", 0.5)
            values = schemes.times(values, factor)
        torchao_weight(model, f"{LAYER}self_attn.{name}", "NVFP4Tensor", parts, schemes.times(numbers.E2M1[codes], np.repeat(values, 16, axis=-1)),
                       block_size=16, orig_dtype=dtype_json("bfloat16"), is_swizzled_scales=in_tiles)
    for name, in_tiles, is_fp4 in (("up_proj", True, False), ("down_proj", False, False), ("gate_proj", True, True)):
        shape = (140, 160)
        codes = draw.integers(0, 16, shape) if is_fp4 else draw.f8_codes(shape)
        scales, values = draw.scales("F8_E8M0", (140, 5))
        table, stored = (numbers.E2M1, tensor("U8", schemes.nibbles(codes))) if is_fp4 else (numbers.E4M3, tensor("F8_E4M3", codes))
        torchao_weight(model, f"{LAYER}mlp.{name}", "MXTensor", {"qdata": stored, "scale": swizzled(scales) if in_tiles else scales},
                       schemes.times(table[codes], np.repeat(values, 32, axis=-1)), block_size=32, is_swizzled_scales=in_tiles,
                       elem_dtype=dtype_json("float4_e2m1fn_x2" if is_fp4 else "float8_e4m3fn"))


# ModelOpt.


@variant
def modelopt_int4_awq(model, draw):
    """W4A16_AWQ: packed along the rows, with scaled inputs."""
    modelopt(model, draw, "W4A16_AWQ", group=32, has_zero_point=False, pre_quant_scale=True)
    for name, shape, dtype, smooth in (("q_proj", (34, 96), "F32", True), ("k_proj", (8, 64), "BF16", False), ("experts", (3, 10, 64), "F16", False)):
        module = f"{LAYER}self_attn.{name}"
        codes = draw.spread(draw.integers(-8, 8, shape), [-8, 7, 0])
        scales, values = draw.scales(dtype, (*shape[:-1], shape[-1] // 32))
        packed = (codes[..., 0::2, :] & 15 | (codes[..., 1::2, :] & 15) << 4).astype(np.uint8)
        inputs = [model.put(module + ".weight", tensor("U8", packed)), model.put(module + ".weight_scale", scales)]
        result = schemes.times(codes, np.repeat(values, 32, axis=-1))
        if smooth:
            result = by_column(result, draw.floats("BF16", shape[-1:]), model, module + ".pre_quant_scale")
            inputs.append(module + ".pre_quant_scale")
        model.computed(module + ".weight", result, inputs)


@variant
def modelopt_scaled_inputs(model, draw):
    """NVFP4_AWQ, FP8 and W8A8_SQ with pre_quant_scale."""
    modelopt(model, draw, "NVFP4_AWQ", group=16, pre_quant_scale=True)
    for name, dtype in (("q_proj", "BF16"), ("k_proj", "F32"), ("v_proj", "F16")):
        module = f"{LAYER}self_attn.{name}"
        weight, smooth = module + ".weight", module + ".pre_quant_scale"
        if name == "q_proj":
            schemes.fp4(model, draw, weight, weight, (33, 48), weight + "_scale", 16, "F8_E4M3", factor=multiplied(model, draw, weight + "_scale_2", ()))
        elif name == "k_proj":
            schemes.fp8_with(model, draw, weight, (31, 48), weight + "_scale", (), positive=True)
        else:
            codes = draw.integers(-128, 128, (31, 48))
            scales, values = draw.scales("F32", (31,))
            inputs = [model.put(weight, tensor("I8", codes)), model.put(weight + "_scale", scales)]
            model.computed(weight, schemes.times(codes, values[:, None]), inputs)
        each = model.results[weight]
        each.values = by_column(each.values, draw.floats(dtype, (48,)), model, smooth)
        each.inputs.append(smooth)


@variant
def modelopt_nvfp4_gate_up(model, draw):
    """Fused experts with separate second scales for the gate and the up projection."""
    modelopt(model, draw, "NVFP4", group=16, only_file=True)
    name = LAYER + "mlp.experts.gate_up_proj"
    codes = draw.integers(0, 16, (3, 22, 48))
    scales, values = draw.scales("F8_E4M3", (3, 22, 3))
    whole = np.asarray(draw.rng.uniform(1e-5, 1e-2, (3, 2)), F32)
    inputs = [model.put(name, tensor("U8", schemes.nibbles(codes))), model.put(name + "_weight_scale", scales),
              model.put(name + "_weight_scale_2", floats("F32", whole))]
    values = schemes.times(values, np.repeat(whole, 11, axis=1)[..., None])
    model.computed(name, schemes.times(numbers.E2M1[codes], np.repeat(values, 16, axis=-1)), inputs)


# GPTQModel's bitsandbytes.


def of_gptqmodel(model, module, parts):
    for old, new in parts:
        if module + old in model.tensors:
            model.tensors = {module + new if name == module + old else name: each for name, each in model.tensors.items()}
            inputs = model.results[module + ".weight"].inputs
            inputs[:] = [module + new if name == module + old else name for name in inputs]


@variant
def gptqmodel_bnb8(model, draw):
    dress(model, draw, "LlamaForCausalLM", {"quant_method": "bitsandbytes", "bits": 8, "format": "int8", "group_size": -1})
    for name, shape in (("q_proj", (24, 40)), ("k_proj", (33, 7))):
        module = f"{LAYER}self_attn.{name}"
        schemes.bnb8(model, draw, module, shape)
        del model.tensors[module + ".weight_format"]
        of_gptqmodel(model, module, [(".SCB", ".weight_scb")])


@variant
def gptqmodel_bnb4(model, draw):
    dress(model, draw, "LlamaForCausalLM", {"quant_method": "bitsandbytes", "bits": 4, "format": "nf4", "group_size": -1})
    for name, kind, nested in (("q_proj", "nf4", False), ("k_proj", "fp4", True)):
        module = f"{LAYER}self_attn.{name}"
        schemes.bnb4(model, draw, module + ".weight", (24, 40), kind, nested=nested)
        of_gptqmodel(model, module, [(f".weight.quant_state.bitsandbytes__{kind}", ".weight_quant_state"),
                                     *[(f".weight.{part}", f".weight_{part}") for part in ("absmax", "quant_map", "nested_absmax", "nested_quant_map")]])


# MLX.


@variant
def mlx_in_text_config(model, draw):
    """The quantisation is in text_config, and its module names lack the prefix of the language model. 4 bits in groups of 64
    and 8 bits in groups of 32 have equal shapes."""
    own = {"group_size": 64, "bits": 4, "mode": "affine", "model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 8},
           "language_model." + LAYER + "mlp.gate_proj": {"group_size": 32, "bits": 8}}
    mlx_config(model, draw, "Qwen3VLForConditionalGeneration", own)
    del model.config["quantization"], model.config["quantization_config"]
    model.config["text_config"] = {"model_type": "qwen3", "quantization": own}
    for name, bits, group in (("up_proj", 4, 64), ("down_proj", 8, 32), ("gate_proj", 8, 32)):
        schemes.mlx_affine(model, draw, f"language_model.{LAYER}mlp.{name}", (9, 128), bits, group)
