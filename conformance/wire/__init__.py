"""A black-box suite for any Kafka broker: it needs an address and nothing else.

Each test retells a bug that somebody met in public, in the broker's own terms: frames go in, frames come out. What is
right was taken from Kafka, so the suite must also pass against Apache Kafka; where it does not, the suite is wrong, or
the difference stands in FINDINGS.md with its reason. Batches are built by `batches`, by hand, so that a wrong builder
of kmirror's cannot agree with a wrong parser of kmirror's; frames use kmirror.protocol.

    python -m conformance.wire --address HOST:PORT [pytest options]
    python -m conformance.wire --start kafka|kmirror [pytest options]
"""
