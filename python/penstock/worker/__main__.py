import os

from penstock.worker.process import main

# Threads that move are in native code, out of which Python cannot end them.
os._exit(main())
