def make_env(:
