"""Fuzzer for the command line and every file format it reads: python -m tests.fuzz --seconds 120 --seed 0"""
