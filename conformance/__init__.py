"""Suites and tools that compare kmirror with other people's software. Nothing here is shipped in the package.

`peers` provisions the other implementations, `wire` is a black-box suite for any broker, `differential` sends one
request sequence to two brokers, `bench` runs kmirror and its peers side by side. They talk to brokers over sockets
only, and may use `kmirror.protocol` to build and read frames, never the broker's own modules.
"""
