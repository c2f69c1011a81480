"""What only a GPU needs: fused kernels, and products of 8-bit floats."""
