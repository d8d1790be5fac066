"""From a config to a checkpoint. Reading order: config, build, schedule, optimizer, distributed, run, state, loop."""
