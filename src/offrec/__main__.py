"""`python -m offrec` runs the `offrec` command."""

from offrec.cli import main

if __name__ == "__main__":
    main()
