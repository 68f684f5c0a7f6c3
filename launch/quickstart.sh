#!/usr/bin/env bash
# Pretrains a small BERT on the documentation of Python and of the installed scientific packages,
# and fills masks with it: `bertjax quickstart`. Takes five to six minutes on two cores; an
# interrupted run resumes. The first argument is the folder of the results.
set -euo pipefail
exec python -m bertjax quickstart --output "${1:-runs/quickstart}"
