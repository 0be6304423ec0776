"""WHERE checkpoints live: format, writing, reading, committing, keeping. Knows no training loop."""
