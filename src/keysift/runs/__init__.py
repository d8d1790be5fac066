"""What a run directory is. layout, metrics, summary and checkpoint are torch-free; directory makes and claims one."""
