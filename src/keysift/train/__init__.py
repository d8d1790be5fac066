"""From a config to a checkpoint. Reading order: config, source, schedule, optimizer, distributed, checkpoint, loop."""
