"""python -m discode: the command line."""

from discode.cli import main

main()
