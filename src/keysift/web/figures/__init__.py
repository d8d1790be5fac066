"""Figures for papers and slides, drawn from records with matplotlib."""
