"""``python -m watchkeeper``: the same as the command ``watchkeeper``."""

from watchkeeper.cli.entry import main

if __name__ == "__main__":
    main()
