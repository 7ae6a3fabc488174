"""Unpacks quantised checkpoints from their files with PyTorch, like the library of each format.

This is an independent check of schemes.py, which computes the values from the codes before they are packed. All
computations are in float32 with one rounding at the end, even if a library computes in the type of the scales.
"""

import json
import pathlib
import re

import numpy as np
import torch

from checkpoint import metadata_of, read_safetensors

F32 = torch.float32


def e4m3(codes):
    """Converts E4M3 through half precision, which has the same fields with another bias."""
    codes = codes.to(torch.int32)
    half = (((codes & 0x80) << 8) | ((codes & 0x7F) << 7)).to(torch.int16).view(torch.float16)
    return torch.where(codes & 0x7F == 0x7F, torch.tensor(float("nan")), half.to(F32) * 256)


def e5m2(codes):
    return (codes.to(torch.int32) << 8).to(torch.int16).view(torch.float16).to(F32)


def e8m0(codes):
    """Converts E8M0 through the bits of float32. The code 0 is a subnormal number."""
    codes = codes.to(torch.int32)
    bits = torch.where(codes == 0, torch.tensor(1 << 22, dtype=torch.int32), codes << 23)
    return torch.where(codes == 255, torch.tensor(float("nan")), bits.view(F32))


FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def torch_of(each):
    """Returns a tensor of a file. BF16, F16 and F32 keep their type; small floats are returned as codes."""
    kinds = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": F32, "I32": torch.int32, "U32": torch.int32,
             "I64": torch.int64, "I8": torch.int8}
    kind = kinds.get(each.dtype, torch.uint8)
    shape = (*each.shape[:-1], each.shape[-1] // 2) if each.dtype == "F4" else each.shape  # two in a byte
    if not each.data:
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(np.frombuffer(each.data, np.uint8).copy()).view(kind).reshape(shape)


def scale_of(each):
    """Returns a scale as float32. U8 means E8M0."""
    codes = torch_of(each)
    if each.dtype in ("U8", "F8_E8M0"):
        return e8m0(codes)
    return e4m3(codes) if each.dtype == "F8_E4M3" else codes.to(F32)


def unpacked_fp4(data):
    """Unpacks interleaved FP4 codes, low nibble first."""
    data = data.view(torch.uint8)
    pairs = torch.stack((FP4[(data & 15).long()], FP4[(data >> 4).long()]), dim=-1)
    return pairs.reshape(*data.shape[:-1], 2 * data.shape[-1])


def block_of(shape, grid, configured):
    """Returns the block size by the rule of FineGrainedDequantize in transformers."""
    if configured and all(-(-n // b) == g for n, b, g in zip(shape, configured, grid)):
        return configured
    assert all(n % g == 0 for n, g in zip(shape, grid)), (shape, grid)
    return [n // g for n, g in zip(shape, grid)]


def blockwise(values, scales, block):
    """Pads to whole blocks, multiplies block by block, and crops, like the dequantiser of DeepSeek."""
    rows, columns = values.shape[-2:]
    down, across = scales.shape[-2:]
    padded = torch.zeros(*values.shape[:-2], down * block[0], across * block[1])
    padded[..., :rows, :columns] = values
    view = padded.reshape(*values.shape[:-2], down, block[0], across, block[1])
    result = view * scales[..., :, None, :, None]
    return result.reshape(padded.shape)[..., :rows, :columns].contiguous()


def whole_numbers(packed, bits, count):
    """Returns the first `count` fields of each row, read from the row as one long number."""
    rows = packed.contiguous().reshape(-1, packed.shape[-1]).numpy().astype("<i4")
    mask = (1 << bits) - 1
    result = []
    for row in rows:
        number = int.from_bytes(row.tobytes(), "little")
        result.append([(number >> (bits * i)) & mask for i in range(count)])
    return torch.tensor(result, dtype=torch.int64).reshape(*packed.shape[:-1], count)


def unpacked_int32(packed, bits, count, dense):
    """Unpacks signed codes in either layout, like unpack_from_int32 of compressed-tensors."""
    factor = 32 // bits
    if dense:
        fields = whole_numbers(packed, bits, count)
    else:
        assert packed.shape[1] == -(-count // factor)
        fields = torch.zeros(packed.shape[0], packed.shape[1] * factor, dtype=torch.int32)
        for i in range(factor):
            fields[:, i::factor] = (packed >> (bits * i)) & ((1 << bits) - 1)
        fields = fields[:, :count]
    return (fields - (1 << (bits - 1))).to(torch.int8)


def grouped(codes, scales, zeros, order):
    """Returns (q - zp) * s. Sorts the columns by their group first, and restores their order at the end."""
    groups, columns = scales.shape[1], codes.shape[1]
    permutation = torch.arange(columns) if order is None or -1 in order else torch.argsort(order, stable=True)
    each = columns // groups
    sorted_codes = codes[:, permutation].to(F32)
    result = torch.zeros(codes.shape)
    for group in range(groups):
        part = slice(group * each, (group + 1) * each)
        value = sorted_codes[:, part]
        if zeros is not None:
            value = value - zeros[:, group : group + 1].to(F32)
        result[:, part] = value * scales[:, group : group + 1]
    return result[:, torch.argsort(permutation)]


class Reference:
    def __init__(self, directory):
        directory = pathlib.Path(directory)
        self.tensors, metadata = {}, {}
        for path in sorted(directory.glob("*.safetensors")):
            self.tensors.update(read_safetensors(path))
            metadata.update(metadata_of(path))
        import library_reference  # imported here because it needs the functions above

        self.libraries = library_reference.Libraries(self.tensors, metadata)
        self.config = {}
        for file in ("quant_config.json", "quantize_config.json", "hf_quant_config.json", "config.json"):
            if (directory / file).exists():
                each = json.loads((directory / file).read_text())
                parts = [part.get("quantization_config") for part in (each, *(part for part in each.values() if isinstance(part, dict)))]
                top = next(filter(None, parts), None) or each.get("quantization") or each.get("text_config", {}).get("quantization")
                self.config = top or ({} if file == "config.json" else each) or self.config
        config = json.loads((directory / "config.json").read_text())
        self.mlx = "quantization" in config or "quantization" in config.get("text_config", {})
        self.scaled = any(name.endswith(("scale", "scale_inv", "scale_2", "_scales")) for name in self.tensors)

    def get(self, name):
        each = self.tensors.get(name)
        return None if each is None else torch_of(each)

    def values(self, name):
        """Returns the values of the result `name` in float32."""
        module = name[: -len(".weight")] if name.endswith(".weight") else None
        # Checks the most specific names first, because a scheme may contain the parts of another scheme.
        if f"{name}_blocks" in self.tensors or f"{name}.blocks" in self.tensors:
            return self.mxfp4_blocks(name)
        if f"{name}.absmax" in self.tensors or f"{name}_absmax" in self.tensors:
            return self.bitsandbytes(name)
        if f"{module}.SCB" in self.tensors or f"{name}_scb" in self.tensors:
            scale = self.get(f"{module}.SCB" if f"{module}.SCB" in self.tensors else f"{name}_scb")
            q = self.get(name).to(F32) * scale[:, None]
            return q * 7.874015718698502e-3
        if f"{module}.qweight" in self.tensors:
            return self.awq(module) if self.is_awq() else self.gptq(module)
        if f"{module}.weight_packed" in self.tensors:
            return self.compressed_pack(module)
        if self.mlx and f"{module}.scales" in self.tensors:
            return self.apple(module)
        result = self.libraries.values(name)
        if result is not None:
            return result
        result, smooth = self.scaled_weight(name, module), self.get(f"{module}.pre_quant_scale")
        return result if smooth is None else result * smooth.to(F32)

    def is_awq(self):
        return "awq" in (self.config.get("quant_method", "awq" if "w_bit" in self.config else ""), *self.config.get("packing_format", "").split("_"))

    def mxfp4_blocks(self, name):
        """Unpacks gpt-oss: a table in BF16, torch.ldexp, and a transposition, except for the files of original/."""
        mark = "_" if f"{name}_blocks" in self.tensors else "."
        data, scales = self.get(f"{name}{mark}blocks"), self.get(f"{name}{mark}scales")
        exponents = scales.to(torch.int32) - 127
        values = unpacked_fp4(data).to(torch.bfloat16)
        result = torch.ldexp(values, exponents[..., None]).to(F32)
        result = torch.where((scales == 255)[..., None], torch.tensor(float("nan")), result)
        result = result.reshape(*data.shape[:2], -1)
        return result.transpose(1, 2).contiguous() if mark == "_" else result

    def bitsandbytes(self, name):
        (key,) = [each for each in self.tensors if each.startswith((f"{name}.quant_state.bitsandbytes__", f"{name}_quant_state"))]
        name, state = key[: len(name) + 1], json.loads(self.tensors[key].data)
        table, absmax = self.get(name + "quant_map"), self.get(name + "absmax")
        if "nested_blocksize" in state:
            inner = self.get(name + "nested_absmax")
            which = torch.arange(len(absmax)) // state["nested_blocksize"]
            absmax = self.get(name + "nested_quant_map")[absmax.long()] * inner[which]
            absmax = absmax + torch.tensor(state["nested_offset"], dtype=F32)
        count = int(np.prod(state["shape"]))
        data = torch.from_numpy(np.frombuffer(self.tensors[name[:-1]].data, np.uint8).copy())
        codes = torch.stack((data >> 4, data & 15), dim=1).reshape(-1)[:count]
        result = table[codes.long()]
        for i in range(len(absmax)):
            part = slice(i * state["blocksize"], (i + 1) * state["blocksize"])
            result[part] = result[part] * absmax[i]
        return result.reshape(state["shape"])

    def gptq(self, module):
        config = {**self.config, **self.config.get("extra_config", {}).get(module, {})}
        bits = config["bits"]
        qweight, qzeros, scales = (self.get(f"{module}.{part}") for part in ("qweight", "qzeros", "scales"))
        rows, mask = qweight.shape[1], (1 << bits) - 1
        if bits == 3:
            weight = self.three_bits(qweight.T.contiguous()).T
            zeros = self.three_bits(qzeros)
        else:
            shifts = torch.arange(0, 32, bits, dtype=torch.int32)
            zeros = torch.bitwise_right_shift(qzeros[:, :, None].expand(-1, -1, 32 // bits), shifts[None, None]) & mask
            zeros = zeros.reshape(len(qzeros), -1)
            weight = torch.bitwise_right_shift(qweight[:, None].expand(-1, 32 // bits, -1), shifts[None, :, None]) & mask
            weight = weight.reshape(-1, rows)
        # Some symmetric checkpoints name the first version but store zero points like the second.
        is_second = bool(config.get("sym")) and int(zeros[0, 0]) == 1 << (bits - 1)
        if config.get("checkpoint_format") != "gptq_v2" and config.get("packing_format") != "auto_round" and not is_second:
            zeros = (zeros + 1) & mask
            if bits != 3 and self.has_borrowed_zeros():
                ones = torch.tensor(sum(1 << i for i in range(0, 32, bits)), dtype=torch.int64)
                words = (qzeros.long() + ones) & 0xFFFFFFFF  # with carry from field to field
                zeros = ((words[:, :, None] >> torch.arange(0, 32, bits)) & mask).reshape(len(qzeros), -1)
        order = self.get(f"{module}.g_idx")
        if order is None:
            group = next((own["group_size"] for key in ("dynamic", "extra_config") for name, own in self.config.get(key, {}).items()
                          if re.match(name.removeprefix("+:").removeprefix("-:"), module) and "group_size" in own), config["group_size"])
            order = torch.arange(len(weight)) // (len(weight) if group == -1 else group)
        order = order.long()
        result = (weight - zeros[order]).to(F32) * scales.to(F32)[order]
        return result if module.endswith("embed_tokens") else result.T.contiguous()

    def has_borrowed_zeros(self):
        writers = str(self.config.get("meta", {}).get("quantizer", ""))
        return "auto-round" in (self.config["quant_method"], self.config.get("provider")) or "gptqmodel" in writers

    @staticmethod
    def three_bits(packed):
        """Unpacks 32 codes from 3 words: ten codes, a split code, ten codes, a split code, ten codes."""
        packed = packed.long() & 0xFFFFFFFF
        first, second, third = packed[:, 0::3], packed[:, 1::3], packed[:, 2::3]
        codes = [(first >> (3 * i)) & 7 for i in range(10)]
        codes.append((first >> 30) | ((second & 1) << 2))
        codes += [(second >> (3 * i + 1)) & 7 for i in range(10)]
        codes.append((second >> 31) | ((third & 3) << 1))
        codes += [(third >> (3 * i + 2)) & 7 for i in range(10)]
        return torch.stack(codes, dim=2).reshape(len(packed), -1)

    def awq(self, module):
        qweight, scales = self.get(f"{module}.qweight"), self.get(f"{module}.scales").to(F32)
        qzeros = self.get(f"{module}.qzeros")
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        back = [0, 4, 1, 5, 2, 6, 3, 7]

        def unpack(packed):
            return ((packed[:, :, None] >> shifts) & 15)[:, :, back].reshape(len(packed), -1)

        group = self.config.get("group_size") or self.config["q_group_size"]
        group = self.config.get("extra_config", {}).get(module, {}).get("group_size", group)
        weight = unpack(qweight)
        zeros = unpack(qzeros) if qzeros is not None else torch.full(scales.shape, 8)
        zeros, scales = (each.repeat_interleave(group, dim=0)[: len(weight)] for each in (zeros, scales))
        return ((weight - zeros).to(F32) * scales).T.contiguous()

    def group_config(self, module):
        groups = [each for each in self.config["config_groups"].values()
                  if (each.get("format") or self.config.get("format")) != "float-quantized"]
        targets = {target: each for each in groups for target in each["targets"]}
        found = ([target for target in targets if target == module]
                 + sorted(target for target in targets if target.startswith("re:") and re.match(target[3:], module))
                 + [target for target in targets if target == "Linear"])
        return (targets[found[0]] if found else groups[0])["weights"]

    def compressed_pack(self, module):
        packed, scale = self.get(f"{module}.weight_packed"), self.tensors[f"{module}.weight_scale"]
        if packed.dtype == torch.uint8:
            values, scales = unpacked_fp4(packed), scale_of(scale)
            whole = self.get(f"{module}.weight_global_scale")
            if whole is not None:
                scales = scales / whole
            group = values.shape[1] // scales.shape[1]
            return (values.unflatten(1, (-1, group)) * scales[:, :, None]).flatten(1)
        bits = self.group_config(module)["num_bits"]
        rows, columns = self.get(f"{module}.weight_shape").tolist()
        dense = packed.shape[1] == -(-columns * bits // 32)  # the zero points have the layout of the weight
        codes = unpacked_int32(packed, bits, columns, dense)
        zeros = self.get(f"{module}.weight_zero_point")
        if zeros is not None and zeros.dtype == torch.int32:
            zeros = unpacked_int32(zeros.T, bits, rows, dense).T
        result = grouped(codes, scale_of(scale), zeros, self.get(f"{module}.weight_g_idx"))
        of_rows = self.get(f"{module}.weight_chan_scale")
        return result if of_rows is None else result * of_rows.to(F32)

    def apple(self, module):
        own = self.config.get(module) or self.config.get(module.removeprefix("language_model."))
        quantization = {"bits": 4, "group_size": 64, **own} if isinstance(own, dict) else self.config
        bits, group, mode = quantization["bits"], quantization["group_size"], quantization.get("mode", "affine")
        packed = self.get(f"{module}.weight")
        codes = whole_numbers(packed, bits, packed.shape[-1] * 32 // bits).unflatten(-1, (-1, group))
        scales = self.tensors[f"{module}.scales"]
        if mode == "affine":
            biases = self.get(f"{module}.biases").to(F32)
            return (codes.to(F32) * scale_of(scales)[..., None] + biases[..., None]).flatten(-2)
        factor = e4m3(torch_of(scales)) if mode == "nvfp4" else scale_of(scales)
        values = e4m3(codes) if bits == 8 else FP4[codes]
        return (values * factor[..., None]).flatten(-2)

    def block_structure(self):
        block = self.config.get("weight_block_size")
        for group in self.config.get("config_groups", {}).values():
            block = block or (group.get("weights") or {}).get("block_structure")
        return [int(each) for each in block.split("x")] if isinstance(block, str) else block

    def scaled_weight(self, name, module):
        """Returns the values of a weight of 8 bits, or of FP4 in bytes, with its scale."""
        each, codes = self.tensors[name], self.get(name)
        names = (f"{name}_scale_inv", f"{name}_scale", f"{module}.scale", f"{name}_weight_scale",
                 f"{module}.scale_weight", f"{module}.qscale_weight")
        scale = next((other for other in names if other in self.tensors), None)
        if scale is None:
            assert not self.scaled, name
            return e5m2(codes) if each.dtype == "F8_E5M2" else e4m3(codes)
        prefix = scale[: -len("_scale")]
        scales = scale_of(self.tensors[scale])
        if each.dtype in ("U8", "I8", "F4") and each.shape[-2:] != scales.shape[-2:] and not self.config.get("format") in ("int-quantized", "naive-quantized"):
            names = (f"{prefix}_scale_2", f"{name}_global_scale", f"{name}_weight_global_scale")
            return self.fp4_weight(codes, scales, self.get(next((other for other in names if other in self.tensors), "")))
        values = codes.to(F32) if each.dtype == "I8" else e4m3(codes)
        if self.config.get("weight_scale_semantics") == "inverse":
            block = self.config.get("weight_block_size")
            if block:
                scales = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
            return values / (scales.reshape(-1, 1) if scales.ndim == 1 else scales)
        zeros = self.get(f"{module}.weight_zero_point")
        if each.dtype == "I8" and scales.ndim == 2 and scales.shape[1] not in (1,):
            return grouped(codes, scales, zeros, None)
        if zeros is not None:
            values = values - zeros.to(F32)
        if scales.numel() == 1:
            return values * scales.reshape(())
        if "fbgemm" in str(self.config.get("quant_method")) and scales.ndim == 3:
            return values * scales.reshape(len(scales), 1, -1)
        if scales.ndim == values.ndim + 2:  # [rows, 1, columns, 1]
            return blockwise(values, scales.squeeze(-1).squeeze(-2), [128, 128])
        if scales.ndim < values.ndim:  # one scale per leading index
            return values * scales.reshape(*scales.shape, *[1] * (values.ndim - scales.ndim))
        if scales.shape[-1] == 1 and scales.shape[-2] == values.shape[-2]:
            return values * scales
        return blockwise(values, scales, block_of(values.shape[-2:], scales.shape[-2:], self.block_structure()))

    @staticmethod
    def fp4_weight(codes, scales, whole):
        bmm = scales.ndim == 3 and scales.shape[2] == codes.shape[2]
        if bmm:
            codes, scales = codes.transpose(1, 2).contiguous(), scales.transpose(1, 2)
        values = unpacked_fp4(codes)
        if whole is not None and whole.ndim == 2:  # one scale for each half of an expert
            whole = whole.repeat_interleave(scales.shape[1] // 2, dim=1)
        if whole is not None:
            scales = scales * whole.reshape(*whole.shape, *[1] * (scales.ndim - whole.ndim))
        group = values.shape[-1] // scales.shape[-1]
        result = (values.unflatten(-1, (-1, group)) * scales[..., None]).flatten(-2)
        return result.transpose(1, 2).contiguous() if bmm else result


def bytes_of(values, word):
    """Returns the bytes of float32 values in the type of the option's value, rounded by PyTorch."""
    kind = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": F32}[word]
    flat = values.reshape(-1).to(kind).contiguous()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
