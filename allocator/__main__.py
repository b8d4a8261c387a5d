"""`python -m allocator` is the command `allocator`."""

from allocator.cli import main

main()
