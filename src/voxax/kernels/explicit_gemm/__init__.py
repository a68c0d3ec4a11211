"""explicit_gemm: copy the input rows of a tap or tile to a matrix in memory, then multiply it."""
