"""Unpacks the layouts of library_variants.py with PyTorch, in the same way as the code of each library. See reference.py."""

import json

import torch

from reference import F32, FP4, e4m3, e8m0, scale_of, torch_of, unpacked_fp4


def rows_of_tiles(data, rows, columns):
    """Returns the rows of a matrix that is stored in tiles of 32 x 16 bytes."""
    down, across = -(-rows // 128), -(-columns // 4)
    tiles = data.reshape(-1, 32, 4, 4).transpose(1, 2).reshape(down, across, 128, 4)
    return tiles.permute(0, 2, 1, 3).reshape(down * 128, across * 4)[:rows, :columns]


def grouped(values, scales):
    """Multiplies equal groups of the last axis."""
    return (values.unflatten(-1, (scales.shape[-1], -1)) * scales[..., None]).flatten(-2)


def smoothed(values, scale):
    return values if scale is None else values * scale.to(F32)


def signed(nibbles):
    return torch.where(nibbles > 7, nibbles - 16, nibbles)


class Libraries:
    def __init__(self, files, metadata):
        self.tensors, self.metadata = files, metadata

    def get(self, name):
        each = self.tensors.get(name)
        return None if each is None else torch_of(each)

    def values(self, name):
        """Returns the values of a result, or None for a weight of another library."""
        module = name[: -len(".weight")] if name.endswith(".weight") else name
        if f"{module}._weight_qdata" in self.tensors:
            return self.torchao(module, json.loads(self.metadata[name]))
        form = self.comfy_format(module)
        if form in ("nvfp4", "mxfp8"):
            return self.comfy(module, form)
        if form == "awq_w4a16":
            codes, (scale, zeros) = self.get(name).view(torch.uint8), (self.get(name + end).T.to(F32) for end in ("_scale", "_zeros"))
            codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).unflatten(-1, (scale.shape[1], -1)).to(F32)
            return ((codes - 8) * scale[..., None] + zeros[..., None]).flatten(-2)
        weight, scale = self.tensors.get(name), self.tensors.get(name + "_scale")
        if weight and scale and weight.dtype == "U8" and scale.dtype in ("F32", "BF16", "F16"):
            return self.modelopt_int4(module)
        smooth = self.get(module + ".pre_quant_scale")
        if weight and scale and weight.dtype == "I8" and (form or smooth is not None):
            scale = torch_of(scale)
            return smoothed(torch_of(weight).to(F32) * (scale[:, None] if scale.ndim == 1 else scale), smooth)
        return None

    def comfy_format(self, module):
        mark = self.tensors.get(module + ".comfy_quant")
        about = json.loads(mark.data) if mark else None
        layers = json.loads(self.metadata.get("_quantization_metadata", "{}")).get("layers", {})
        return (about or layers.get(module, {})).get("format")

    def comfy(self, module, form):
        weight, scale = self.get(module + ".weight").view(torch.uint8), self.get(module + ".weight_scale").view(torch.uint8)
        if form == "mxfp8":
            scales = e8m0(rows_of_tiles(scale, len(weight), weight.shape[1] // 32))
            return grouped(e4m3(weight), scales)
        lead, rows, columns = weight.shape[:-2], weight.shape[-2], 2 * weight.shape[-1]
        values = torch.stack((FP4[(weight >> 4).long()], FP4[(weight & 15).long()]), dim=-1).flatten(-2)
        each = scale.reshape(-1, *scale.shape[-2:])
        scales = torch.stack([e4m3(rows_of_tiles(part, rows, columns // 16)) for part in each]).reshape(*lead, rows, -1)
        whole = self.get(module + ".weight_scale_2")
        scales = scales * whole.reshape(*whole.shape, *[1] * (scales.ndim - whole.ndim))
        return smoothed(grouped(values, scales), self.get(module + ".pre_quant_scale"))

    def modelopt_int4(self, module):
        packed = self.get(module + ".weight").to(torch.int32)
        codes = torch.stack((signed(packed & 15), signed(packed >> 4)), dim=-2)  # rows, two, columns
        codes = codes.flatten(-3, -2)
        values = grouped(codes.to(F32), scale_of(self.tensors[module + ".weight_scale"]))
        return smoothed(values, self.get(module + ".pre_quant_scale"))

    def torchao(self, module, about):
        base, data = module + "._weight_", about["_data"]
        qdata = self.get(base + "qdata")
        scale = scale_of(self.tensors[base + "scale"]) if base + "scale" in self.tensors else None
        kind = about["_type"]
        if kind == "Float8Tensor":
            values = e4m3(qdata)
            for axis in range(scale.ndim if scale.numel() > 1 else 0):
                scale = scale.repeat_interleave(values.shape[axis] // scale.shape[axis], dim=axis)
            return values * scale
        if kind in ("Int8Tensor", "IntxUnpackedToInt8Tensor"):
            values, zeros = qdata.to(F32), self.get(base + "zero_point")
            group = data["block_size"][-1]
            if zeros is not None:
                values = values - zeros.to(F32).repeat_interleave(group, dim=-1)
            return smoothed(values * scale.repeat_interleave(group, dim=-1), self.get(base + "act_pre_scale"))
        if kind == "Int4Tensor":
            packed = qdata.view(torch.uint8).to(torch.int32)
            codes = torch.stack((signed(packed & 15), signed(packed >> 4)), dim=-1).flatten(-2).to(F32)
            group, zeros = data["block_size"][-1], self.get(base + "zero_point").to(F32)
            parts = [part * scale[..., i, :, None] + zeros[..., i, :, None] for i, part in enumerate(codes.split(group, dim=-1))]
            return smoothed(torch.cat(parts, dim=-1), self.get(base + "act_pre_scale"))
        is_fp4 = qdata.dtype == torch.uint8 and self.tensors[base + "qdata"].dtype in ("U8", "F4")
        values = unpacked_fp4(qdata) if is_fp4 else e4m3(qdata)
        convert = e4m3 if kind == "NVFP4Tensor" else e8m0
        codes = self.get(base + "scale").view(torch.uint8)
        columns = values.shape[-1] // data["block_size"]
        if data["is_swizzled_scales"]:
            codes = rows_of_tiles(codes, values.shape[:-1].numel(), columns).reshape(*values.shape[:-1], columns)
        scales, whole = convert(codes), self.get(base + "per_tensor_scale")
        return grouped(values, scales if whole is None else whole * scales)
