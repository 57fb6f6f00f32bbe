import sys

from penstock.worker.process import main

sys.exit(main())
