"""Checks of a log that is only read: what its files say of each other, and against a replay of its batches. L2."""
