"""`python -m kproxy` is the `kproxy` command."""

from kproxy.cli import main

if __name__ == "__main__":
    main()
