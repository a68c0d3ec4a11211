"""implicit_gemm: gather rows tile by tile inside the product, never all of them at once."""
