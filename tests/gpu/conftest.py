"""Which tests of this folder a process runs: Triton reads TRITON_INTERPRET once, when kernels are defined.

1      interpret the kernels on CPU tensors
0      compile them for devices
unset  a slice of both, in processes of its own (`make test`); nothing without triton
"""

import os

FILES = {
    "1": ["test_screening.py", "test_sums.py", "test_faults.py", "test_choice.py", "test_index_arithmetic.py"],
    "0": ["test_binaries.py"],
    None: ["test_slice.py"],
}
selected = FILES[os.environ.get("TRITON_INTERPRET")]
collect_ignore = [file for files in FILES.values() for file in files if file not in selected]
