#!/usr/bin/env python3
"""Makes small quantised checkpoints, and what `-o dequantize` must show of them.

make_quantised.py list                      prints the names of the variants
make_quantised.py make NAME DIR [SEED]      writes DIR/checkpoint, and DIR/expected with {bf16,f16,f32}.safetensors
                                            and expected.json (vanished, passes, from, config)
make_quantised.py random SEED DIR           the same of a random scheme with random shapes
make_quantised.py broken                    prints the names of the checkpoints that must be refused
make_quantised.py broken NAME DIR           writes DIR/checkpoint and DIR/expected.json (outcome, words)
"""

import json
import pathlib
import sys

import variants


def write(model, directory):
    directory = pathlib.Path(directory)
    model.write(directory / "checkpoint")
    model.write_expected(directory / "expected")


def main(words):
    if words == ["list"]:
        print("\n".join(variants.VARIANTS))
    elif words[:1] == ["make"] and len(words) in (3, 4):
        write(variants.make(words[1], int(words[3]) if len(words) == 4 else 0), words[2])
    elif words[:1] == ["random"] and len(words) == 3:
        import random_variants

        write(random_variants.make(int(words[1])), words[2])
    elif words == ["broken"]:
        import broken

        print("\n".join(broken.BROKEN))
    elif words[:1] == ["broken"] and len(words) == 3:
        import broken

        model, expected = broken.make(words[1])
        directory = pathlib.Path(words[2])
        model.write(directory / "checkpoint")
        (directory / "expected.json").write_text(json.dumps(expected, indent=2))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
