"""The command line. Each command imports the rooms that it needs when it runs."""
