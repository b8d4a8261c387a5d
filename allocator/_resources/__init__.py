"""The shipped tables and fits: `data` and `fits` here are links to those folders at the top of the tree."""
