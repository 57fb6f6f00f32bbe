"""The command line. Sees every room, imports each when a command needs it."""
