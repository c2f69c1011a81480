"""Code for GPUs: fused kernels, and products of 8-bit floats."""
