"""`python -m trainworks.cli`."""

from trainworks.cli.app import main

if __name__ == "__main__":
    main()
