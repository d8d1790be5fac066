"""Tests of the Triton kernels on machines without a GPU."""
