"""kmirror and its peers, side by side in one run.

Why side by side: a laptop's disk and clock change by a third within minutes, so only runs that alternate on the same
machine can be compared, and only ratios travel. What must hold: every contestant gets the same client, the same sizes
and a warm-up; the order changes from pair to pair; a table shows medians of at least five pairs with their spread;
nothing is left on disk. The numbers are for reading, no test depends on them.
"""
