"""`penstock up`: a plan, verified, served and measured on this machine; ends in one verdict."""
