"""Product and peers side by side, in one run: `python -m benchmarks` or one family by its module."""
