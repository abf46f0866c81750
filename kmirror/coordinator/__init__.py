"""Coordinators: groups and their offsets, transactions. Pure machines that return effects. L2."""
