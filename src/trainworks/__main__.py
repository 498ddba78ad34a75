"""`python -m trainworks`."""

from trainworks.cli.app import main

if __name__ == "__main__":
    main()
