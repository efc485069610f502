"""A session's folder in the ledger: what of it arrives, and that nothing counts twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from fuzz.core.verdict import Signature, Verdict
from fuzz.ledger import read
from fuzz.ledger.database import Ledger
from fuzz.ledger.errors import LedgerError
from fuzz.ledger.feed import take_in
from fuzz.ledger.signatures import signature, signatures
