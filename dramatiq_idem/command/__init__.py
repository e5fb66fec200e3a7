"""The subcommands that look at the nodes and look after the records; they need the extra ``cli``."""
