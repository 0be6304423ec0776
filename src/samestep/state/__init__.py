"""WHAT decides the next step: read it, restore it, in the right order. Never touches storage."""
