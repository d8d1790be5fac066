"""Measurements. Each refuses to time what fails its test, and reports ratios taken in one process."""
