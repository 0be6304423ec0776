"""IS the resume exact: record what a command's processes do, kill them, compare, name the cause."""
