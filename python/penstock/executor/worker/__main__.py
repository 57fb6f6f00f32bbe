import logging
import os

from penstock.executor.worker.process import main

status = main()
logging.shutdown()
# Threads of the KV mover run native code, which an exit of the interpreter cannot end.
os._exit(status)
