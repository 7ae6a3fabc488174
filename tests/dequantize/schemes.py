"""One function per scheme: draws random codes and scales, packs them like the scheme, and computes the result.

The result is computed from the codes before they are packed, and never by unpacking. Every step is one NumPy operation
on float32, so each step is rounded.
"""

import json

import numpy as np

import number_types as numbers
from checkpoint import Tensor, blocks, floats, tensor

F32 = np.float32


class Draw:
    """Random numbers from one seed. With `edges`, the arrays also contain codes that are easy to get wrong."""

    def __init__(self, seed, edges=True):
        self.rng = np.random.default_rng(seed)
        self.edges = edges

    def integers(self, low, high, shape):
        return self.rng.integers(low, high, size=shape, dtype=np.int64)

    def spread(self, array, special):
        """Puts each special value at a random place, if the array has at least twice as many elements."""
        if self.edges and array.size >= 2 * len(special):
            places = self.rng.choice(array.size, len(special), replace=False)
            array.reshape(-1)[places] = special
        return array

    def f8_codes(self, shape):
        """Returns random E4M3 codes that include NaN, zeros, subnormals, the smallest and the largest value."""
        codes = self.integers(0, 256, shape).astype(np.uint8)
        return self.spread(codes, [0x7F, 0xFF, 0, 0x80, 1, 0x81, 7, 8, 0x7E, 0xFE])

    def scales(self, dtype, shape, positive=False):
        """Returns a tensor of scales, and their values in float32."""
        size = int(np.prod(shape))
        if dtype in ("F8_E8M0", "U8"):
            codes = self.integers(110, 135, size).astype(np.uint8)
            each = tensor(dtype, self.spread(codes, [255, 0, 1, 254, 253, 127]).reshape(shape))
        elif dtype == "F8_E4M3":
            codes = self.integers(0x10, 0x7F, size).astype(np.uint8)
            each = tensor(dtype, self.spread(codes, [0x7F, 0, 1, 7, 0x7E]).reshape(shape))
        else:
            values = np.exp2(self.rng.uniform(-14, 3, size)).astype(F32)
            if not positive:
                values *= self.rng.choice(np.array([1, -1], F32), size, p=[0.9, 0.1])
            values[::2] = numbers.values_of("BF16", numbers.bytes_of(values[::2], "BF16"))  # few bits, so that results have ties
            special = {
                "F32": [np.nan, 0, -0.0, 1e-40, 3.4e38, np.inf, 1.17549435e-38],
                "BF16": [np.nan, 0, -0.0, 1e-40, 3.38e38, np.inf],
                "F16": [np.nan, 0, -0.0, 6e-8, 65504, np.inf],
            }[dtype]
            each = floats(dtype, self.spread(values, np.array(special, F32)).reshape(shape))
        return each, each.values()

    def floats(self, dtype, shape):
        values = self.rng.standard_normal(shape).astype(F32)
        return floats(dtype, self.spread(values, np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-41], F32)))


def stream(codes, bits):
    """Packs codes along the last axis into a dense stream of bits, lowest bit first, in words of 32 bits (uint32)."""
    codes = np.asarray(codes, np.int64)
    spread = (codes[..., None] >> np.arange(bits)) & 1
    spread = spread.reshape(*codes.shape[:-1], codes.shape[-1] * bits)
    filled = np.zeros((*spread.shape[:-1], 32 * blocks(spread.shape[-1], 32)), np.uint8)
    filled[..., : spread.shape[-1]] = spread
    return np.packbits(filled, axis=-1, bitorder="little").view("<u4")


def words(codes, bits):
    """Packs codes in the older layout of compressed-tensors: 32 // bits codes per word, with unused upper bits."""
    codes = np.asarray(codes, np.int64)
    each = 32 // bits
    filled = np.zeros((*codes.shape[:-1], each * blocks(codes.shape[-1], each)), np.int64)
    filled[..., : codes.shape[-1]] = codes
    return np.concatenate([stream(part, bits) for part in np.split(filled, filled.shape[-1] // each, axis=-1)], axis=-1)


def along(packer, codes, bits, axis):
    return np.moveaxis(packer(np.moveaxis(codes, axis, -1), bits), -1, axis)


def nibbles(codes):
    """Packs 4-bit codes along the last axis into bytes, with the first code in the low bits."""
    return stream(codes, 4).view(np.uint8)[..., : codes.shape[-1] // 2]


def spread_blocks(scales, shape, block):
    """Expands scales of blocks of the last axes to one scale per element. The last block of an axis may be incomplete."""
    first = scales.ndim - len(block)
    for i, size in enumerate(block):
        axis = first + i
        scales = np.take(scales, np.arange(shape[axis]) // size, axis=axis)
    return scales


def times(a, b):
    with np.errstate(all="ignore"):
        return (np.asarray(a, F32) * np.asarray(b, F32)).astype(F32)


# FP8 and the MX formats.


def fp8_block(model, draw, name, shape, block, dtype="F32", scale="_scale_inv"):
    """E4M3 with one scale per block of the last two axes. `scale` is a suffix, or a whole name if it contains a dot."""
    codes = draw.f8_codes(shape)
    grid = (*shape[:-2], blocks(shape[-2], block[0]), blocks(shape[-1], block[1]))
    scales, values = draw.scales(dtype, grid)
    model.put(name, tensor("F8_E4M3", codes))
    other = model.put(scale if "." in scale else name + scale, scales)
    model.computed(name, times(numbers.E4M3[codes], spread_blocks(values, shape, block)), [name, other])


def fp8_powers(model, draw, name, shape, block):
    """Like fp8_block, but the scales are powers of two stored as F32."""
    codes = draw.f8_codes(shape)
    grid = (blocks(shape[0], block[0]), blocks(shape[1], block[1]))
    values = np.exp2(draw.integers(-20, 4, grid)).astype(F32)
    model.put(name, tensor("F8_E4M3", codes))
    other = model.put(name + "_scale_inv", floats("F32", values))
    model.computed(name, times(numbers.E4M3[codes], spread_blocks(values, shape, block)), [name, other])


def fp8_with(model, draw, name, shape, other, scale_shape, dtype="F32", aligned=None, positive=False):
    """E4M3 with scales of a tensor, channel or expert, which NumPy broadcasts after a reshape to `aligned`."""
    codes = draw.f8_codes(shape)
    scales, values = draw.scales(dtype, scale_shape, positive)
    model.put(name, tensor("F8_E4M3", codes))
    model.put(other, scales)
    model.computed(name, times(numbers.E4M3[codes], values.reshape(aligned or scale_shape)), [name, other])


def fp8_divided(model, draw, name, shape, grid, block=None):
    """GPTQModel's own FP8, which stores 448 / amax; values are divided by it."""
    codes = draw.f8_codes(shape)
    scales, values = draw.scales("F32", grid, positive=True)
    model.put(name, tensor("F8_E4M3", codes))
    other = model.put(name + "_scale_inv", scales)
    values = spread_blocks(values, shape, block) if block else values.reshape(*grid, 1) if grid else values
    with np.errstate(all="ignore"):
        model.computed(name, (numbers.E4M3[codes] / values).astype(F32), [name, other])


def fp8_without_scales(model, draw, name, shape, dtype="F8_E4M3"):
    codes = draw.f8_codes(shape)
    model.put(name, tensor(dtype, codes))
    model.computed(name, (numbers.E4M3 if dtype == "F8_E4M3" else numbers.E5M2)[codes], [name])


def fp4(model, draw, packed, result, shape, scale, group, dtype, packed_dtype="U8", factor=None):
    """E2M1 along the last axis with one scale per group. `factor` computes the multipliers of the elements from the scales."""
    codes = draw.integers(0, 16, shape)
    scales, values = draw.scales(dtype, (*shape[:-1], shape[-1] // group))
    stored = nibbles(codes)
    stored = Tensor("F4", shape, stored.tobytes()) if packed_dtype == "F4" else tensor(packed_dtype, stored.view("i1" if packed_dtype == "I8" else "u1"))
    inputs = [model.put(packed, stored)]
    inputs.append(model.put(scale, scales))
    if factor is not None:
        values, more = factor(values)
        inputs += more
    model.computed(result, times(numbers.E2M1[codes], spread_blocks(values, shape, (group,))), inputs)


def gpt_oss(model, draw, name, experts, rows, columns, separator="_", transposed=True):
    codes = draw.integers(0, 16, (experts, rows, columns))
    scales, values = draw.scales("U8", (experts, rows, columns // 32))
    data = nibbles(codes).reshape(experts, rows, columns // 32, 16)
    inputs = [model.put(f"{name}{separator}blocks", tensor("U8", data)), model.put(f"{name}{separator}scales", scales)]
    result = times(numbers.E2M1[codes], np.repeat(values, 32, axis=-1))
    model.computed(name, np.ascontiguousarray(result.transpose(0, 2, 1)) if transposed else result, inputs)


# compressed-tensors.


def ct_pack(model, draw, module, shape, bits, group=0, dtype="BF16", layout="dense", zero=None, order=None, shape_type="I64", rows_dtype=None):
    """pack-quantized. Group 0 means one scale per channel; zero is None, "packed" or "I8"; order is None, "g_idx" or "unused".

    `rows_dtype` is for W4A8: the type of an additional scale per row.
    """
    packer = {"dense": stream, "words": words}[layout]
    rows, columns = shape[-2:]
    half, groups = 1 << (bits - 1), columns // group if group else 1
    codes = draw.spread(draw.integers(0, 2 * half, shape), [0, 2 * half - 1])
    scales, values = draw.scales(dtype, (*shape[:-1], groups))
    inputs = [
        model.put(f"{module}.weight_packed", tensor("I32", packer(codes, bits).view("<i4"))),
        model.put(f"{module}.weight_scale", scales),
        model.put(f"{module}.weight_shape", tensor(shape_type, np.array(shape))),
    ]
    zeros = np.zeros((*shape[:-1], groups), np.int64)
    if zero:
        zeros = draw.spread(draw.integers(-half, half, zeros.shape), [-half, half - 1])
        stored = tensor("I8", zeros) if zero == "I8" else tensor("I32", along(packer, zeros + half, bits, -2).view("<i4"))
        inputs.append(model.put(f"{module}.weight_zero_point", stored))
    index = np.arange(columns) // group if group else np.zeros(columns, np.int64)
    if order == "g_idx":
        index = draw.rng.permutation(index)
    if order:
        stored = index if order == "g_idx" else np.full(columns, -1)
        inputs.append(model.put(f"{module}.weight_g_idx", tensor("I32", stored)))
    result = times(codes - half - zeros[..., index], values[..., index])
    if rows_dtype:
        more, of_rows = draw.scales(rows_dtype, (*shape[:-1], 1))
        inputs.append(model.put(f"{module}.weight_chan_scale", more))
        result = times(result, of_rows)
    model.computed(f"{module}.weight", result, inputs)


def ct_int8(model, draw, module, shape, strategy, zero=False, dtype="BF16"):
    """int-quantized. `strategy` is "tensor", "channel" or the size of a group."""
    rows, columns = shape
    grid = {"tensor": (1,), "channel": (rows, 1)}.get(strategy) or (rows, columns // strategy)
    codes = draw.spread(draw.integers(-128, 128, shape), [-128, 127, 0])
    scales, values = draw.scales(dtype, grid)
    inputs = [model.put(f"{module}.weight", tensor("I8", codes)), model.put(f"{module}.weight_scale", scales)]
    zeros = np.zeros(grid, np.int64)
    if zero:
        zeros = draw.integers(-128, 128, grid)
        inputs.append(model.put(f"{module}.weight_zero_point", tensor("I8", zeros)))
    if isinstance(strategy, int):
        zeros, values = (spread_blocks(each, shape, (strategy,)) for each in (zeros, values))
    model.computed(f"{module}.weight", times(codes - zeros, values), inputs)


# GPTQ and AWQ: stored [in, out], the result is [out, in].


def gptq(model, draw, module, rows, columns, bits, group, version=1, g_idx="plain", sym=False, dtype="F16", bias=False, borrows=False):
    """g_idx is "plain", "order" (a permutation) or None (absent). Group -1 means one group. With sym "but one" the last zero
    point differs.

    `borrows`: GPTQModel and AutoRound subtract 1 from all zero points of a word in one subtraction.
    """
    size = columns if group == -1 else group
    groups, mask = blocks(columns, size), (1 << bits) - 1
    codes = draw.spread(draw.integers(0, mask + 1, (columns, rows)), [0, mask])
    zeros = draw.spread(draw.integers(0, mask + 1, (groups, rows)), [0, mask, 1])
    if sym:
        zeros[:] = 1 << (bits - 1)
        zeros[-1, -1] += sym == "but one"
    scales, values = draw.scales(dtype, (groups, rows))
    if borrows:
        ones = sum(1 << i for i in range(0, 32, bits))
        stored = stream(zeros, bits) - np.uint32(ones)
    else:
        stored = stream((zeros - 1) & mask if version == 1 else zeros, bits)
    index = np.arange(columns) // size
    if g_idx == "order":
        index = draw.rng.permutation(index)
    inputs = [
        model.put(f"{module}.qweight", tensor("I32", along(stream, codes, bits, 0).view("<i4"))),
        model.put(f"{module}.scales", scales),
    ]
    inputs.append(model.put(f"{module}.qzeros", tensor("I32", stored.view("<i4"))))
    if g_idx:
        inputs.append(model.put(f"{module}.g_idx", tensor("I32", index)))
    if bias:
        model.passes(f"{module}.bias", draw.floats(dtype, (rows,)))
    result = times(codes - zeros[index], values[index])
    model.computed(f"{module}.weight", np.ascontiguousarray(result.T), inputs)


AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the column of each nibble of a word


def awq(model, draw, module, rows, columns, group, zero=True, dtype="F16"):
    groups = blocks(columns, group)
    codes = draw.spread(draw.integers(0, 16, (columns, rows)), [0, 15])
    zeros = draw.integers(0, 16, (groups, rows)) if zero else np.full((groups, rows), 8)
    scales, values = draw.scales(dtype, (groups, rows))

    def packed(each):
        return tensor("I32", stream(each.reshape(len(each), -1, 8)[:, :, AWQ_ORDER].reshape(each.shape), 4).view("<i4"))

    inputs = [model.put(f"{module}.qweight", packed(codes))]
    if zero:
        inputs.append(model.put(f"{module}.qzeros", packed(zeros)))
    inputs.append(model.put(f"{module}.scales", scales))
    index = np.arange(columns) // group
    result = times(codes - zeros[index], values[index])
    model.computed(f"{module}.weight", np.ascontiguousarray(result.T), inputs)


# bitsandbytes.

NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]
FP4 = [0, 0.0052083333, 0.6666667, 1, 0.33333333, 0.5, 0.16666667, 0.25]
FP4 = FP4 + [-each for each in FP4]


def bnb4(model, draw, name, shape, kind="nf4", block=64, nested=False, storage="U8", state=None):
    count = int(np.prod(shape))
    table = np.array(NF4 if kind == "nf4" else FP4, F32)
    codes = draw.integers(0, 16, count)
    pairs = np.zeros(2 * blocks(count, 2), np.int64)
    pairs[:count] = codes
    data = nibbles(pairs.reshape(-1, 2)[:, ::-1].reshape(-1))
    if storage != "U8":
        data = data.view(f"<u{2 if storage in ('BF16', 'F16') else 4}")
    stored = tensor("U8", data.reshape(-1, 1)) if storage == "U8" else None
    if stored is None:
        stored = type(tensor("U8", np.zeros(1)))(storage, (len(data), 1), data.tobytes())
    about = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": list(shape)}
    number = blocks(count, block)
    inputs = [model.put(name, stored)]
    if nested:
        levels = np.sort(draw.rng.uniform(-1, 1, 256)).astype(F32)
        levels[-1] = 1
        steps = draw.integers(0, 256, number)
        inner, inner_values = draw.scales("F32", (blocks(number, 256),), positive=True)
        offset = 0.04374
        absmax = times(levels[steps], np.repeat(inner_values, 256)[:number])
        with np.errstate(all="ignore"):
            absmax = absmax + F32(offset)
        inputs.append(model.put(f"{name}.absmax", tensor("U8", steps)))
        inputs.append(model.put(f"{name}.nested_absmax", inner))
        inputs.append(model.put(f"{name}.nested_quant_map", floats("F32", levels)))
        about.update(nested_blocksize=256, nested_dtype="float32", nested_offset=offset)
    else:
        scales, absmax = draw.scales("F32", (number,), positive=True)
        inputs.append(model.put(f"{name}.absmax", scales))
    inputs.append(model.put(f"{name}.quant_map", floats("F32", table)))
    text = json.dumps({**about, **(state or {})}).encode()
    inputs.append(model.put(f"{name}.quant_state.bitsandbytes__{kind}", tensor("U8", np.frombuffer(text, np.uint8))))
    model.computed(name, times(table[codes], np.repeat(absmax, block)[:count]).reshape(shape), inputs)


def bnb8(model, draw, module, shape):
    codes = draw.spread(draw.integers(-128, 128, shape), [-128, 127, 0])
    scales, values = draw.scales("F32", (shape[0],), positive=True)
    inputs = [model.put(f"{module}.weight", tensor("I8", codes)), model.put(f"{module}.SCB", scales)]
    model.put(f"{module}.weight_format", tensor("U8", np.array(0)))
    result = times(times(codes, values[:, None]), F32(0.007874015718698502))
    model.computed(f"{module}.weight", result, inputs)


# MLX.


def mlx_affine(model, draw, module, shape, bits, group, dtype="BF16"):
    codes = draw.spread(draw.integers(0, 1 << bits, shape), [0, (1 << bits) - 1])
    grid = (*shape[:-1], shape[-1] // group)
    scales, values = draw.scales(dtype, grid)
    biases, least = draw.scales(dtype, grid)
    inputs = [
        model.put(f"{module}.weight", tensor("U32", stream(codes, bits))),
        model.put(f"{module}.scales", scales),
        model.put(f"{module}.biases", biases),
    ]
    with np.errstate(all="ignore"):
        result = times(codes, spread_blocks(values, shape, (group,))) + spread_blocks(least, shape, (group,))
    model.computed(f"{module}.weight", result, inputs)


def mlx_fp(model, draw, module, shape, mode):
    group, bits, table, kind = {
        "mxfp4": (32, 4, numbers.E2M1, "U8"),
        "mxfp8": (32, 8, numbers.E4M3, "U8"),
        "nvfp4": (16, 4, numbers.E2M1, "F8_E4M3"),
    }[mode]
    codes = draw.integers(0, 1 << bits, shape) if bits == 4 else draw.f8_codes(shape)
    scales, values = draw.scales(kind, (*shape[:-1], shape[-1] // group))
    inputs = [
        model.put(f"{module}.weight", tensor("U32", stream(codes, bits))),
        model.put(f"{module}.scales", tensor("U8", scales.array())),
    ]
    model.computed(f"{module}.weight", times(table[codes], spread_blocks(values, shape, (group,))), inputs)
