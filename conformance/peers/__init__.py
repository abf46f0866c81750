"""Installs and runs the software that kmirror is compared with: Apache Kafka (several versions), kfake, kcat, kmirror.

By command: `python -m conformance.peers --help`. As a library: `kafka.KafkaInstallation`, `kafka.KafkaBroker`,
`kfake.KfakeBroker`, `kmirror_process.KmirrorBroker`. As pytest fixtures: `conformance.peers.fixtures`.

What must hold: every process is started in its own session and ended by its recorded pid only; every port is free and
on loopback; a missing prerequisite raises `PeerUnavailable`, whose text says what to install.
"""
