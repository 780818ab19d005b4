"""The tokenizer that simulated replicas use unless told otherwise: its files lie in this folder."""

from pathlib import Path

TOKENIZER_DIRECTORY = Path(__file__).parent
