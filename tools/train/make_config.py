"""Writes config.json of the bundled model for a tokenizer (tiny-model.md §2).

    python3 make_config.py ../../models/tiny
"""
import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer

from model.config import Config, compressed_vocab, load_config

TEXT = {
    "model_type": "deepseek_v41_text", "hidden_size": 256, "num_hidden_layers": 10, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 128, "qk_rope_head_dim": 16, "q_lora_rank": 128, "o_lora_rank": 64,
    "o_groups": 2, "hidden_act": "silu", "swiglu_limit": 10.0, "rms_norm_eps": 1e-20, "attention_bias": False,
    "attention_dropout": 0.0, "tie_word_embeddings": False, "max_position_embeddings": 32768, "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 65536},
    "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5,
    "sliding_window": 64, "compress_ratios": [0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0, 0], "compress_rope_theta": 160000.0,
    "kv_source_layer_ids": [1, 3, 5], "index_source_layer_ids": [1, 3, 5, 7], "index_n_heads": 8, "index_head_dim": 32,
    "index_topk": 128, "candidate_source_layer_id": 5, "candidate_topk_blocks": 128, "candidate_block_size": 8,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "engram_layer_ids": [1, 3], "engram_max_ngram_size": 4,
    "engram_vocab_size": 12000, "engram_n_heads": 2, "engram_head_dim": 32, "engram_pad_token_id": 2,
    "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_target_layer_ids": [7, 8, 9],
    "dspark_markov_rank": 32, "dspark_n_routed_experts": 8, "dspark_num_experts_per_tok": 2,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    args = parser.parse_args()
    path = args.tokenizer or args.folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))

    def token(*spellings):
        for s in spellings:
            if tokenizer.token_to_id(s) is not None:
                return tokenizer.token_to_id(s)
        raise ValueError(f"{path} has none of the tokens {spellings}")

    text = {**TEXT, "vocab_size": tokenizer.get_vocab_size(with_added_tokens=True)}
    text["engram_compressed_vocab_size"] = compressed_vocab(str(path))[1]
    text["dspark_noise_token_id"] = token("<｜System｜>")
    primes = Config({**text, "engram_num_embeddings": []}).engram_primes()
    text["engram_num_embeddings"] = primes.reshape(len(primes), -1).sum(1).tolist()
    raw = {
        "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
        "bos_token_id": token("<｜begin▁of▁sentence｜>"), "eos_token_id": token("<｜end▁of▁sentence｜>"),
        "pad_token_id": token("<｜▁pad▁｜>"), "tie_word_embeddings": False,
        "image_token_id": token("<｜deepseek_image｜>", "<｜image｜>"),
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                                "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
        "text_config": dict(sorted(text.items())),
    }
    (args.folder / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    load_config(args.folder)
    print(f"{args.folder / 'config.json'}: vocabulary {text['vocab_size']}, compressed {text['engram_compressed_vocab_size']}")


if __name__ == "__main__":
    main()
