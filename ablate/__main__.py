"""`python -m ablate`."""

from ablate.cli import main

main()
