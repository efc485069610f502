#!/usr/bin/env bash
# One night: ci/nightly.sh [--dry-run] [--cases N] [--max-minutes M] [--skip STAGE] …; what was cut off goes on. ci/nightly/ has the stages.
cd "$(dirname "$0")/.." && exec "${PYTHON:-.venv/bin/python}" -m ci.nightly "$@"
