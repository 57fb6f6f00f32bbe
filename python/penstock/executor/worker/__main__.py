import logging
import os

from penstock.executor.worker.process import main

status = main()
logging.shutdown()
# The movers' threads run native code, which Python cannot end.
os._exit(status)
