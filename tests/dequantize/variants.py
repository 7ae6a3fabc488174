"""All variants, and the functions that make their configs.

variants.py prints the names, and variants.py NAME DIR writes a checkpoint.
"""

import sys

import library_variants  # noqa: F401, registers its variants
from packed_variants import ct_config, ct_weights, divided, mlx_config
from registry import LAYER, VARIANTS, dress, make
from scaled_variants import fp8_config, modelopt, multiplied

__all__ = ["LAYER", "VARIANTS", "ct_config", "ct_weights", "divided", "dress", "fp8_config", "make", "mlx_config", "modelopt", "multiplied"]

if __name__ == "__main__":
    if len(sys.argv) == 3:
        make(sys.argv[1]).write(sys.argv[2])
    else:
        print("\n".join(VARIANTS))
