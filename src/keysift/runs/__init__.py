"""What a run directory is. layout, metrics, summary and checkpoint are free of torch; directory makes and claims one."""
