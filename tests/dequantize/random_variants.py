"""Checkpoints with random schemes and shapes. The same seed gives the same checkpoint. Also used as seeds of a fuzzer."""

import numpy as np

import schemes
import variants
from checkpoint import Checkpoint, floats
from schemes import Draw

MODULES = ["self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.experts.0.down_proj", "mlp.shared_experts.gate_proj"]


def size(draw, step=1, most=300):
    """Returns a multiple of `step`; small sizes are more frequent than large sizes."""
    return step * max(1, int(most ** draw.rng.random()) // step)


def fp8_block(model, draw, modules):
    block = draw.rng.choice([(128, 128), (64, 128), (1, 32), (32, 32), (1, 128)]).tolist()
    dtype = str(draw.rng.choice(["F32", "BF16", "F16", "F8_E8M0"]))
    variants.dress(model, draw, "DeepseekV3ForCausalLM", variants.fp8_config(block))
    for module in modules:
        schemes.fp8_block(model, draw, module + ".weight", (size(draw), size(draw)), block, dtype)


def fp8_scale(model, draw, modules):
    variants.dress(model, draw, "LlamaForCausalLM", {"quant_method": "fp8", "activation_scheme": "static"})
    for module in modules:
        shape = (size(draw), size(draw))
        scale = [(), (1,), (shape[0], 1)][draw.integers(0, 3, ())]
        schemes.fp8_with(model, draw, module + ".weight", shape, module + ".weight_scale", scale, str(draw.rng.choice(["F32", "BF16"])))


def gpt_oss(model, draw, modules):
    variants.dress(model, draw, "GptOssForCausalLM", {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    for module in modules:
        schemes.gpt_oss(model, draw, module, size(draw, most=5), size(draw), size(draw, 32))


def ct_pack(model, draw, modules):
    bits = int(draw.rng.choice([2, 3, 4, 5, 6, 7, 8]))
    group = int(draw.rng.choice([0, 32, 64, 128]))
    zero = [None, None, "packed", "I8"][draw.integers(0, 4, ())]
    order = [None, None, "g_idx", "unused"][draw.integers(0, 4, ())] if group else None
    layout = str(draw.rng.choice(["dense", "words"]))
    variants.dress(model, draw, "LlamaForCausalLM", variants.ct_config(
        "pack-quantized", variants.ct_weights(bits, "group" if group else "channel", symmetric=zero is None, group=group or None)))
    for module in modules:
        columns = size(draw, group or 1)
        if bits in (3, 5, 6, 7) and schemes.blocks(columns * bits, 32) == schemes.blocks(columns, 32 // bits):
            columns = 320  # short rows may have the same width in both layouts
        columns = columns if not group or columns % group == 0 else 5 * group
        schemes.ct_pack(model, draw, module, (size(draw), columns), bits, group, str(draw.rng.choice(["BF16", "F16", "F32"])),
                        layout, zero, order)


def ct_int8(model, draw, modules):
    strategy = ["tensor", "channel", 32][draw.integers(0, 3, ())]
    variants.dress(model, draw, "LlamaForCausalLM", variants.ct_config("int-quantized", variants.ct_weights(8, str(strategy))))
    zero = bool(draw.integers(0, 2, ()))
    for module in modules:
        shape = (size(draw), size(draw, 32 if strategy == 32 else 1))
        schemes.ct_int8(model, draw, module, shape, strategy, zero, str(draw.rng.choice(["BF16", "F16", "F32"])))


def ct_nvfp4(model, draw, modules):
    variants.dress(model, draw, "LlamaForCausalLM",
                   variants.ct_config("nvfp4-pack-quantized", variants.ct_weights(4, "tensor_group", "float", group=16)))
    for module in modules:
        schemes.fp4(model, draw, module + ".weight_packed", module + ".weight", (size(draw), size(draw, 16)), module + ".weight_scale",
                    16, "F8_E4M3", factor=variants.divided(model, draw, module))


def nvfp4(model, draw, modules):
    variants.modelopt(model, draw, "NVFP4", group=16)
    for module in modules:
        schemes.fp4(model, draw, module + ".weight", module + ".weight", (size(draw), size(draw, 16)), module + ".weight_scale",
                    16, "F8_E4M3", factor=variants.multiplied(model, draw, module + ".weight_scale_2", ()))


def gptq(model, draw, modules):
    bits = int(draw.rng.choice([2, 3, 4, 8]))
    group = int(draw.rng.choice([-1, 32, 64, 128]))
    version = int(draw.integers(1, 3, ()))
    g_idx = [None, "plain", "order"][draw.integers(0, 3, ())]
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": g_idx == "order", "sym": False}
    if version == 2:
        config["checkpoint_format"] = "gptq_v2"
    variants.dress(model, draw, "Qwen2ForCausalLM", config)
    step = {2: 16, 3: 32, 4: 8, 8: 4}[bits]
    for module in modules:
        columns = size(draw, step)
        if g_idx == "order" and group > 0 and columns % group:
            columns = 3 * group
        schemes.gptq(model, draw, module, size(draw, step), columns, bits, group, version, g_idx, dtype=str(draw.rng.choice(["F16", "BF16"])))


def awq(model, draw, modules):
    group, zero = int(draw.rng.choice([32, 64, 128])), bool(draw.integers(0, 2, ()))
    variants.dress(model, draw, "Qwen2ForCausalLM",
                   {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": zero, "version": "gemm"})
    for module in modules:
        schemes.awq(model, draw, module, size(draw, 8), size(draw, group, 600), group, zero)


def bnb(model, draw, modules):
    kind, nested = str(draw.rng.choice(["nf4", "fp4"])), bool(draw.integers(0, 2, ()))
    variants.dress(model, draw, "LlamaForCausalLM", {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind})
    for module in modules:
        block = int(draw.rng.choice([64, 128, 256, 512, 4096]))
        schemes.bnb4(model, draw, module + ".weight", (size(draw), size(draw)), kind, block, nested)


def bnb8(model, draw, modules):
    variants.dress(model, draw, "LlamaForCausalLM", {"quant_method": "bitsandbytes", "load_in_8bit": True})
    for module in modules:
        schemes.bnb8(model, draw, module, (size(draw), size(draw)))


def mlx(model, draw, modules):
    bits, group = int(draw.rng.choice([2, 3, 4, 5, 6, 8])), int(draw.rng.choice([32, 64, 128]))
    variants.mlx_config(model, draw, "Qwen3ForCausalLM", {"group_size": group, "bits": bits})
    for module in modules:
        lead = (size(draw, most=4),) if draw.integers(0, 3, ()) == 0 else ()
        schemes.mlx_affine(model, draw, module, (*lead, size(draw, most=60), size(draw, group, 600)), bits, group,
                           str(draw.rng.choice(["BF16", "F16", "F32"])))


def mlx_fp(model, draw, modules):
    mode, group, bits = [("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4)][draw.integers(0, 3, ())]
    variants.mlx_config(model, draw, "Qwen3ForCausalLM", {"group_size": group, "bits": bits, "mode": mode})
    for module in modules:
        schemes.mlx_fp(model, draw, module, (size(draw, most=60), size(draw, 32, 600)), mode)


FAMILIES = [fp8_block, fp8_scale, gpt_oss, ct_pack, ct_int8, ct_nvfp4, nvfp4, gptq, awq, bnb, bnb8, mlx, mlx_fp]


def make(seed):
    draw = Draw((7, seed), edges=seed % 4 != 0)
    model = Checkpoint(shards=int(draw.integers(1, 4, ())))
    family = FAMILIES[seed % len(FAMILIES)]
    count = int(draw.integers(1, len(MODULES) + 1, ()))
    family(model, draw, [variants.LAYER + module for module in MODULES[:count]])
    if draw.integers(0, 2, ()):
        model.put(variants.LAYER + "self_attn.k_scale", floats("F32", np.float32(1)))
    return model
