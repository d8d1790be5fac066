"""The command line: main.py and one file for each verb. Nothing here imports torch before a verb runs."""
