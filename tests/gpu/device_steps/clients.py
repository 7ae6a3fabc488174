"""clients.py VERB DEVICE WORD...: the processes that use tensors, each with a context of its own. A
client prints JSON objects, one a line, and ends with status 1 and one line on standard error when
what it finds is wrong.

compare FILE [KEY=VALUE...]   acquires each tensor of the file and compares its bytes with the source;
                              load=1 loads what is not resident, soft=N and hard=N limit the open files
read FILE                     the same again and again, until standard input is closed
hold FILE                     acquires and waits
convert FILE TYPE... | shard FILE RANK/WORLD@DIM...
one_by_one FILE               loads each tensor by a request of its own: each gets a segment
drop FILE | store FILE NAME   a tensor given back under a copy; a store into one
free | stages BYTES | ceilings BYTES FILE | plain BYTES FILE | acquire FILE N...
first FILE NAME with|without  the first tensor of a new process, with PyTorch or without
rate FILE LOADER with|without seconds to bring the file into the device: by load_file, safe_open, ...
torch | cupy | jax FILE       addresses and sums, as this library sees them
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
    except Exception as error:  # whatever it is, the step says it in one line
        print(f"{verb}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
