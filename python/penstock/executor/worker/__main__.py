import logging
import os

from penstock.executor.worker.process import main

status = main()
logging.shutdown()
# Threads of the KV mover run native code, and a normal exit of the interpreter cannot end them.
os._exit(status)
