"""config.json, the layer schedule and everything that is derived from them (model.md §1, §2, §5.10)."""
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tokenizer.compressed_vocab import compressed_vocab


@dataclass(frozen=True)
class Config:
    """The fields of text_config that the training graph uses, with the schedule derived from them."""
    raw: dict = field(repr=False)

    def __getattr__(self, name):
        raw = object.__getattribute__(self, "raw")
        if name in raw:
            return raw[name]
        raise AttributeError(f"config.json has no field {name}")

    # ---- schedule -------------------------------------------------------------------------------
    @property
    def layers(self) -> int:
        return self.num_hidden_layers

    def ratio(self, layer: int) -> int:
        return self.compress_ratios[layer]

    def kv_source(self, layer: int) -> int:
        return max(s for s in self.kv_source_layer_ids if s <= layer)

    def index_source(self, layer: int) -> int:
        return max(s for s in self.index_source_layer_ids if s <= layer)

    def uses_candidates(self, layer: int) -> bool:
        """True for an index source that scores only inside the candidate blocks of an earlier layer."""
        return layer in self.index_source_layer_ids and 0 <= self.candidate_source_layer_id < layer

    @property
    def mix_rows(self) -> int:
        return (2 + self.hc_mult) * self.hc_mult

    # ---- Engram ---------------------------------------------------------------------------------
    @property
    def engram_columns(self) -> int:
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads

    def engram_primes(self) -> np.ndarray:
        """[engram layers, orders, heads]; successive primes from engram_vocab_size, none used twice."""
        used, out = set(), []
        for _ in self.engram_layer_ids:
            for _ in range(2, self.engram_max_ngram_size + 1):
                n = self.engram_vocab_size - 1
                for _ in range(self.engram_n_heads):
                    n = next_prime(n, used)
                    used.add(n)
                    out.append(n)
        return np.array(out, dtype=np.int64).reshape(
            len(self.engram_layer_ids), self.engram_max_ngram_size - 1, self.engram_n_heads)

    def engram_offsets(self) -> np.ndarray:
        """[engram layers, columns], the exclusive prefix sum of the primes inside a layer."""
        flat = self.engram_primes().reshape(len(self.engram_layer_ids), -1)
        return np.cumsum(flat, axis=1) - flat

    def engram_multipliers(self) -> np.ndarray:
        """[engram layers, max n-gram size], odd, from numpy's default generator seeded by the layer."""
        bound = max(1, (2**63 - 1) // self.engram_compressed_vocab_size // 2)
        return np.stack([
            np.random.default_rng(10007 * layer).integers(
                0, bound, size=self.engram_max_ngram_size, dtype=np.int64) * 2 + 1
            for layer in self.engram_layer_ids])

    # ---- rope -----------------------------------------------------------------------------------
    def rope_frequencies(self, compressed: bool) -> np.ndarray:
        """float64 [rd/2]; YaRN is always on for layers with a compress ratio (model.md §5.5)."""
        rd = self.qk_rope_head_dim
        i = np.arange(rd // 2, dtype=np.float64)
        if not compressed:
            return self.rope_theta ** (-2 * i / rd)
        theta, s = self.compress_rope_theta, self.rope_scaling
        freq = theta ** (-2 * i / rd)

        def correction(rotations):
            return rd * math.log(s["original_max_position_embeddings"] / (2 * math.pi * rotations)) / (
                2 * math.log(theta))

        low = max(math.floor(correction(s["beta_fast"])), 0)
        high = min(math.ceil(correction(s["beta_slow"])), rd - 1)
        ramp = np.clip((i - low) / max(high - low, 0.001), 0, 1)
        return freq / s["factor"] * ramp + freq * (1 - ramp)

    def check(self):
        """The rules of model.md §1.1 that a training run could break."""
        text = self
        assert len(text.compress_ratios) == text.layers + text.num_nextn_predict_layers
        assert all(r in (0, 1, 2) for r in text.compress_ratios)
        for layer in range(text.layers):
            if text.ratio(layer):
                assert text.ratio(text.kv_source(layer)) == text.ratio(layer)
                assert text.ratio(text.index_source(layer)) == text.ratio(layer)
        assert set(text.kv_source_layer_ids) <= set(text.index_source_layer_ids)
        sums = text.engram_primes().reshape(len(text.engram_layer_ids), -1).sum(1).tolist()
        assert sums == list(text.engram_num_embeddings), f"engram_num_embeddings must be {sums}"
        return self


def next_prime(n: int, used: set) -> int:
    while True:
        n += 1
        if n not in used and n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1)):
            return n


def load_config(folder) -> Config:
    raw = json.loads((Path(folder) / "config.json").read_text())
    flat = dict(raw.get("text_config", {}))
    flat.update({k: v for k, v in raw.items() if k != "text_config"})
    return Config(flat).check()


# ---- compressed vocabulary ------------------------------------------------------------------------
def engram_vocab_map(config: Config, tokenizer_path=None) -> np.ndarray:
    """Token id to compressed id, int64 [vocab] (model.md §5.10); the identity when the sizes are equal."""
    if config.engram_compressed_vocab_size == config.vocab_size:
        return np.arange(config.vocab_size, dtype=np.int64)
    table, size = compressed_vocab(str(tokenizer_path))
    if size != config.engram_compressed_vocab_size:
        raise ValueError(f"engram_compressed_vocab_size is {config.engram_compressed_vocab_size}, "
                         f"{tokenizer_path} gives {size}")
    full = np.zeros(config.vocab_size, dtype=np.int64)
    full[:len(table)] = table
    return full
