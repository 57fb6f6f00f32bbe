import sys

from penstock.engine.process import main

sys.exit(main())
