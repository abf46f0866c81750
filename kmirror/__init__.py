"""kmirror: a Kafka cluster in one process, the destination of Cluster Mirroring (KIP-1279)."""

__version__ = "0.1.0"
