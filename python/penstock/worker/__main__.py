import os

from penstock.worker.process import main

# Threads of movers are in native code, which Python cannot end.
os._exit(main())
