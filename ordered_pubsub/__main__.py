"""`python -m ordered_pubsub`: the command line."""

import sys

from ordered_pubsub.cli import main

sys.exit(main())
