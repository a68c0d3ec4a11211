"""explicit_gemm: gather rows, multiply dense, accumulate."""
