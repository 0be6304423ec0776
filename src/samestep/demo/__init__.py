"""SEE it work: a small training on real data, killed, resumed and compared. Uses only the public library."""
