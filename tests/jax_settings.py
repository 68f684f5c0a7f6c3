"""Settings of jax for tests, as environment variables: imported before jax.

So the processes that tests start have them, too.
"""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Each pytest worker has a core; more threads of PyTorch would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Programs are kept between runs, in the folder that pytest keeps for such things: compiling is most
# of the time.
_CACHE = Path(__file__).parent.parent / ".pytest_cache" / "jax"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_CACHE)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
# A quarter of the time to compile; what runs here is too small to miss the optimisations.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
