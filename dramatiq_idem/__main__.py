"""Run the command without its script: ``python -m dramatiq_idem``."""

from __future__ import annotations

from dramatiq_idem.cli import main

if __name__ == "__main__":
    main()
