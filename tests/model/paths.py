"""The path of each tensor in a mount, by the rules for names in docs/SEMANTICS.md."""

import hashlib
import re

DIGEST = re.compile(rb".~[0-9a-f]{16}\Z", re.DOTALL)


def escaped(byte):
    return b"%%%02X" % byte


def encoded_component(component, is_first):
    """Returns one component of a path, not yet shortened."""
    if component in (b".", b".."):
        return component.replace(b".", b"%2E")
    text = b"".join(escaped(byte) if byte < 0x20 or byte in (0x25, 0x2F, 0x7F) else bytes([byte]) for byte in component)
    return b"%2Estfs" if is_first and component == b".stfs" else text


def shortened(component):
    """Cuts a component of more than 240 bytes; it ends in a digest then. So does one that looks as if it were cut."""
    if len(component) <= 240 and not DIGEST.search(component):
        return component
    digest = hashlib.sha256(component).hexdigest()[:16].encode()
    kept = component[:223]
    if len(component) > 223:
        while kept and component[len(kept)] & 0xC0 == 0x80:  # inside a character
            kept = kept[:-1]
        for length in (1, 2):  # inside an escape
            if kept[-length:][:1] == b"%":
                kept = kept[:-length]
                break
    return kept + b"~" + digest


def components(name, names):
    """Returns the components of the path of the tensor `name` among all tensors' `names`."""
    if name == b"":
        return [b"%"]
    parts, begin = [], 0
    for place, byte in enumerate(name):
        if byte != 0x2F or place in (0, len(name) - 1) or name[place - 1] == 0x2F or name[:place] in names:
            continue
        parts.append(name[begin:place])
        begin = place + 1
    parts.append(name[begin:])
    return [shortened(encoded_component(part, number == 0)) for number, part in enumerate(parts)]


def path(parts, suffix=b""):
    """Joins components. In a view whose files have a suffix, a directory with that suffix has its dot escaped."""
    directories = [
        part[: -len(suffix)] + b"%2E" + suffix[1:] if suffix and part.endswith(suffix) else part for part in parts[:-1]
    ]
    return b"/".join([*directories, parts[-1] + suffix])
