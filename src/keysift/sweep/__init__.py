"""Train several runs, evaluate them and compare them. Reading order: plan, drive, child; trials, report."""
