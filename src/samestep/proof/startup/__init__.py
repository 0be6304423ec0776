"""The folder that PYTHONPATH names in a recorded command: it holds a `sitecustomize` and nothing else."""
