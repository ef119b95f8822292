#!/usr/bin/env python3
"""Writes a GGUF model that costs next to nothing to run: one layer of width 32 with random weights, a byte vocabulary. What a
server takes with it is the server's own.

    trivial_model.py OUT.gguf
"""
import sys

import gguf
import numpy

WIDTH, HIDDEN, HEADS, CONTEXT = 32, 32, 2, 4096


def main():
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + [f"▁{word}" for word in (
        "hello", "world", "time", "house", "water", "people", "the", "of", "and", "to")]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * 10
    draw = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(sys.argv[1], "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def weights(*shape):
        return draw.standard_normal(shape, dtype=numpy.float32) * 0.05

    writer.add_tensor("token_embd.weight", weights(len(tokens), WIDTH))
    writer.add_tensor("output_norm.weight", numpy.ones(WIDTH, dtype=numpy.float32))
    writer.add_tensor("output.weight", weights(len(tokens), WIDTH))
    for name, shape in (("attn_q", (WIDTH, WIDTH)), ("attn_k", (WIDTH, WIDTH)), ("attn_v", (WIDTH, WIDTH)), ("attn_output", (WIDTH, WIDTH)),
                        ("ffn_gate", (HIDDEN, WIDTH)), ("ffn_up", (HIDDEN, WIDTH)), ("ffn_down", (WIDTH, HIDDEN))):
        writer.add_tensor(f"blk.0.{name}.weight", weights(*shape))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", numpy.ones(WIDTH, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
