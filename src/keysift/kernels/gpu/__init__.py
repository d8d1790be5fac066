"""Triton kernels for CUDA and ROCm devices. Only `device_code` and its launchers import triton, on first use."""
