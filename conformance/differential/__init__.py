"""One seeded sequence of requests sent to two brokers, their answers compared field by field.

    python -m conformance.differential --help

What may differ is listed in `rules`, each entry with its reason; everything else is a finding.
"""
