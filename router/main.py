"""The command ``pointsman``: joins the subcommands that each package declares."""

import sys


def main(argv: list[str] | None = None) -> int:
    return 0


if __name__ == "__main__":
    sys.exit(main())
