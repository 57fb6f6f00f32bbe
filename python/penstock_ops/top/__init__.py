"""`penstock top`: servers, gateways and their replicas in a terminal, read over HTTP."""
