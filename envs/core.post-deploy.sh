#!/usr/bin/env bash
# Runs in the new conda environment, from the checkout.
set -euo pipefail
python -m pip install --quiet -r envs/core.txt
python -m pip install --quiet --no-deps -e .
