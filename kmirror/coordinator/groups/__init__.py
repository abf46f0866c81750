"""Consumer groups: members and generations (classic), committed offsets. L2."""
