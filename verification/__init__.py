"""Is a port the same environment? Conformance of backends, and statistics of gaps."""
