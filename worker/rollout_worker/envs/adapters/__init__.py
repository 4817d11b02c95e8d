"""Adapters: other libraries' environments as an `EnvBase`. Each imports its library only where it must make something."""
