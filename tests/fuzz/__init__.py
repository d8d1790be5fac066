"""A fuzzer of the command line and of every file it reads: python -m tests.fuzz --seconds 120 --seed 0"""
