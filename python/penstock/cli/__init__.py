"""The command line. Imports each room when a command needs it."""
