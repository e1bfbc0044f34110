"""Triton kernels that calibration times, each with a float64 reference in `references`."""
