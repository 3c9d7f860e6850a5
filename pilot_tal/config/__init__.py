"""From `key=value` and YAML to runs: every name, type, range and default once."""
