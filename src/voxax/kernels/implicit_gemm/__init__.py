"""implicit_gemm: gather tile by tile inside the computation, never the whole matrix."""
