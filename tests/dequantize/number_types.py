"""The number types of quantised checkpoints as tables of float32, and the rounding of float32 to these types."""

import numpy as np


def small_float(code, exponent_bits, mantissa_bits, bias):
    """Returns the value of a code of a small binary floating type. The caller handles infinities and NaN."""
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / 2.0**mantissa_bits) * 2.0 ** (exponent - bias)


def e4m3_table():
    values = [small_float(code, 4, 3, 7) for code in range(256)]
    values[0x7F] = values[0xFF] = np.nan
    return np.array(values, np.float32)


def e5m2_table():
    values = [small_float(code, 5, 2, 15) for code in range(256)]
    for code in range(256):
        if code & 0x7C == 0x7C:
            values[code] = np.nan if code & 3 else (-np.inf if code & 0x80 else np.inf)
    return np.array(values, np.float32)


E4M3 = e4m3_table()
E5M2 = e5m2_table()
E8M0 = np.array([2.0 ** (code - 127) for code in range(255)] + [np.nan], np.float32)
E2M1 = np.array([small_float(code, 2, 1, 1) for code in range(16)], np.float32)


def bf16_of(values):
    """Returns the bits of float32 values rounded once to BF16, to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    kept, lost = bits >> 16, bits & 0xFFFF
    up = (lost > 0x8000) | ((lost == 0x8000) & (kept & 1 == 1))
    rounded = (kept + up).astype(np.uint16)
    return np.where(np.isnan(values), (kept & 0x8000) | 0x7FC0, rounded).astype("<u2")


def f16_of(values):
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32).astype("<f2").view("<u2")


def values_of(dtype, raw, shape=None):
    """Returns the float32 values of the bytes of a floating type. U8 is read as E8M0."""
    if dtype == "F32":
        values = np.frombuffer(raw, "<f4")
    elif dtype == "F16":
        values = np.frombuffer(raw, "<f2").astype(np.float32)
    elif dtype == "BF16":
        values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        table = {"F8_E4M3": E4M3, "F8_E5M2": E5M2, "F8_E8M0": E8M0, "U8": E8M0}[dtype]
        values = table[np.frombuffer(raw, np.uint8)]
    return values if shape is None else values.reshape(shape)


RESULTS = {"bf16": "BF16", "f16": "F16", "f32": "F32"}  # the value of the option, and its dtype


def bytes_of(values, dtype):
    """Returns float32 values, rounded once, as the bytes of a tensor of BF16, F16 or F32."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    return (bf16_of(values) if dtype == "BF16" else f16_of(values)).tobytes()


def without_nans(raw, dtype):
    """Returns the bytes with each NaN replaced by the same NaN, because stfs promises no payload."""
    kind, exponent, one = {
        "BF16": ("<u2", 0x7F80, 0x7FC0),
        "F16": ("<u2", 0x7C00, 0x7E00),
        "F32": ("<u4", 0x7F800000, 0x7FC00000),
    }[dtype]
    bits = np.frombuffer(raw, kind)
    magnitude = bits & (0x7FFF if kind == "<u2" else 0x7FFFFFFF)
    return np.where(magnitude > exponent, np.array(one, kind), bits).astype(kind).tobytes()
