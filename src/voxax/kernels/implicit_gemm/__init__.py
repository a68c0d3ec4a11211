"""implicit_gemm: gather input rows inside the product, without a gathered copy in memory."""
