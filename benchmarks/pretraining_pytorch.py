"""A pretraining step and a forward pass of transformers' BERT in PyTorch, for `pretraining.py`.

The MLM head runs at the masked positions only, as in bertjax.
"""

import contextlib
from typing import Any

import torch
import transformers

CLIP, LEARNING_RATE, DECAY = 1.0, 1e-4, 0.01


class PyTorchSubject:
    """Runs blocks of steps or forward passes on one batch.

    Args:
        config: fields of transformers' `BertConfig`.
        batch: a batch of bertjax, numpy arrays, with one sequence per row.
        kind: words joined by "-": eager or sdpa attention, compile, and float32, autocast (the
            matrix multiplications in bfloat16) or bfloat16 (also parameters; for forward passes).
        device: the device of PyTorch.
    """

    def __init__(self, config: dict[str, Any], batch: dict[str, Any], kind: str, device: str):
        words = kind.split("-")
        attention = "sdpa" if "sdpa" in words else "eager"
        torch.manual_seed(0)
        hf: Any = transformers
        described = hf.BertConfig(**config, attn_implementation=attention)
        model = hf.BertForPreTraining(described).to(device)
        if "bfloat16" in words:
            model = model.to(torch.bfloat16)
        self._device, self._autocast = device, "autocast" in words
        self._model = model
        self._batch = {
            key: torch.tensor(batch[key], device=device)
            for key in ("input_ids", "token_type_ids", "masked_labels", "masked_weights", "labels")
        }
        for key in ("input_ids", "token_type_ids", "masked_labels", "labels"):
            self._batch[key] = self._batch[key].long()
        positions = torch.tensor(batch["masked_positions"], device=device).long()
        self._positions = positions[..., None].expand(-1, -1, described.hidden_size)
        real = torch.tensor(batch["sequence_ids"] > 0, device=device)
        # Full rows need no attention mask, and are faster without one.
        self._mask = None if bool(real.all()) else real.long()
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim <= 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
            lr=LEARNING_RATE,
            fused=True,
        )
        self._logits = torch.compile(self._outputs) if "compile" in words else self._outputs

    def _outputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch = self._batch
        encoded = self._model.bert(
            input_ids=batch["input_ids"],
            token_type_ids=batch["token_type_ids"],
            attention_mask=self._mask,
        )
        chosen = encoded.last_hidden_state.gather(1, self._positions)
        return self._model.cls(chosen, encoded.pooler_output)

    def _precision(self) -> Any:
        if not self._autocast:
            return contextlib.nullcontext()
        return torch.autocast(self._device.split(":")[0], torch.bfloat16)

    def _loss(self) -> torch.Tensor:
        words, pairs = self._logits()
        entropy = torch.nn.functional.cross_entropy
        losses = entropy(
            words.flatten(0, 1).float(), self._batch["masked_labels"].flatten(), reduction="none"
        )
        weights = self._batch["masked_weights"].flatten()
        labels = self._batch["labels"].flatten()
        return (losses * weights).sum() / weights.sum() + entropy(pairs.float(), labels)

    def step(self, steps: int) -> None:
        """Full updates: forward, backward, clipping, AdamW; dropout on."""
        self._model.train()
        for _ in range(steps):
            self._optimizer.zero_grad(set_to_none=True)
            with self._precision():
                loss = self._loss()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
            self._optimizer.step()
        self._wait()

    def forward(self, steps: int) -> None:
        """Outputs of all heads, without dropout."""
        self._model.eval()
        with torch.inference_mode(), self._precision():
            for _ in range(steps):
                self._logits()
        self._wait()

    def _wait(self) -> None:
        if self._device.startswith("cuda"):
            torch.cuda.synchronize()
