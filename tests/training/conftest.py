"""Where torch is not installed, nothing here can run; the tests of this folder are left out."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
