"""The scenario that `allocator scenario new` writes: every key with its meaning, ready to be edited."""
