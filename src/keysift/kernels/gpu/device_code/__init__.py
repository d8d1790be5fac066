"""Triton kernels and the functions that they share. Importing these modules imports triton."""
