#!/usr/bin/env bash
# Pretrains a small BERT on the documentation of Python and of the installed scientific packages,
# and fills masks with it. Takes five minutes on two cores; an interrupted run resumes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-runs/quickstart}

# 1. Train a WordPiece vocabulary of 4,096 entries.
[ -f "$out/tokenizer/vocab.txt" ] ||
  python -m bertjax.train_tokenizer --input pydocs --vocab_size 4096 --output "$out/tokenizer"

# 2. Prepare sentence pairs, half of them consecutive, as rows of token ids. 3 % of the documents
#    are held out.
python -m bertjax.prepare --input pydocs --tokenizer "$out/tokenizer" --output "$out/data" \
  --max_length 64 --eval_fraction 0.03

# 3. Pretrain with masked LM and next-sentence prediction.
python -m bertjax.pretrain --config configs/pretrain/quickstart.py --data "$out/data" \
  --workdir "$out/run"

# 4. Fill a mask and check the metrics.
python -m bertjax.predict --model "$out/run" --fill_mask "returns the [MASK] of the array."
python "$here/check_quickstart.py" "$out"
