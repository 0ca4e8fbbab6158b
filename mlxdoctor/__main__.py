"""`python -m mlxdoctor`: the command line."""

import sys

from mlxdoctor.cli import main

if __name__ == "__main__":
    sys.exit(main())
