"""implicit_gemm: gather input rows while multiplying, without a copy of them in memory."""
