"""python -m discode: the command line."""

from discode._cli import main

main()
