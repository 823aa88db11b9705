"""Run the command line as ``python -m rheostat``, as torchrun does: ``torchrun -m rheostat train ...``."""

from rheostat.cli import main

main()
