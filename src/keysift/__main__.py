"""`python -m keysift` is `keysift`, and `torchrun ... -m keysift` is keysift in every process."""

from keysift.cli.main import main

if __name__ == "__main__":
    main()
