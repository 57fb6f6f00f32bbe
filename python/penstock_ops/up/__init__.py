"""`penstock up`: a plan, verified, served and measured, here or on hosts; ends in one verdict."""
