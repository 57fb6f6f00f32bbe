import logging
import os

from penstock.executor.worker.process import main

status = main()
logging.shutdown()
# Threads of movers are in native code, which Python cannot end.
os._exit(status)
