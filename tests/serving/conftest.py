"""Makes the doubles importable by the tests of the server."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
