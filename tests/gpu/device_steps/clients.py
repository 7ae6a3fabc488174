"""clients.py VERB DEVICE WORD...: the processes that use tensors. Each has a separate context. A client
prints JSON objects, one per line. If it finds an error, it ends with status 1 and one line on standard
error.

compare FILE [KEY=VALUE...]   acquires each tensor of the file and compares its bytes with the source;
                              load=1 loads missing tensors, soft=N and hard=N limit the open files
read FILE                     compares again and again, until standard input is closed
hold FILE                     acquires and waits
convert FILE TYPE... | shard FILE RANK/WORLD@DIM...
one_by_one FILE               loads each tensor with a separate request, so that each gets a segment
drop FILE | store FILE NAME   releases a tensor during a copy; stores into a tensor
free | stages BYTES | ceilings BYTES FILE | plain BYTES FILE | acquire FILE N...
first FILE NAME with|without  the first tensor in a new process, with PyTorch or without
rate FILE LOADER with|without seconds to load the file to the device with load_file, safe_open, ...
torch | cupy | jax FILE       addresses and sums from this library
torch_drop FILE | torch_store FILE
"""

from __future__ import annotations

import sys


def main() -> int:
    import measures
    import readers
    import frameworks
    verbs = {**readers.VERBS, **measures.VERBS, **frameworks.VERBS}
    verb, device, words = sys.argv[1], sys.argv[2], sys.argv[3:]
    try:
        verbs[verb](device, *words)
    except Exception as error:  # the step reports any error in one line
        print(f"{verb}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
