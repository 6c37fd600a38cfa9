"""Public job traces, one reader a file. The data stays outside the repository: each reader takes a path."""
