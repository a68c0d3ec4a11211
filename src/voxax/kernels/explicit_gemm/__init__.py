"""explicit_gemm: gather the input rows of a tap or tile into memory, then multiply matrices."""
