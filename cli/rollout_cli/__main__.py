"""`python -m rollout_cli` is `rolloutctl`."""

import sys

from rollout_cli.main import main

sys.exit(main())
