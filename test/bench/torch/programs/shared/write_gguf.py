"""Writes the file of a model of Llama's kind as llama.cpp reads it, with random half-precision weights. Needs the package gguf.

usage: write_gguf.py FOLDER FILE      of the configuration and the tokenizer in a folder
"""
import json
import os
import sys

import gguf
import numpy


def write(path, shape, words):
    """Of a shape as in a config.json, with a vocabulary of so many words."""
    width, inner, layers, heads, key_heads = (shape[name] for name in (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"))
    key_width = width // heads * key_heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_rope_freq_base(shape["rope_theta"])
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(words)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)

    # Words, behind the bytes that a tokenizer of this kind has to have.
    kinds = gguf.TokenType
    tokens = [("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL)]
    tokens += [(f"<0x{byte:02X}>", kinds.BYTE) for byte in range(256)]
    tokens += [(f"\u2581w{number}", kinds.NORMAL) for number in range(len(tokens), words)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([-float(number) for number in range(len(tokens))])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)

    random = numpy.random.default_rng(1)
    made = {}

    def weights(*size):
        """One array for all of its size: what the weights are changes no time."""
        if size not in made:
            made[size] = (random.standard_normal(size, numpy.float32) * 0.02).astype(numpy.float16)
        return made[size]

    ones = numpy.ones(width, numpy.float32)
    writer.add_tensor("token_embd.weight", weights(words, width))
    for layer in range(layers):
        for name, tensor in (("attn_norm", ones), ("ffn_norm", ones), ("attn_q", weights(width, width)),
                             ("attn_output", weights(width, width)), ("attn_k", weights(key_width, width)),
                             ("attn_v", weights(key_width, width)), ("ffn_gate", weights(inner, width)),
                             ("ffn_up", weights(inner, width)), ("ffn_down", weights(width, inner))):
            writer.add_tensor(f"blk.{layer}.{name}.weight", tensor)
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", weights(words, width))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    folder, path = sys.argv[1:]
    with open(os.path.join(folder, "config.json")) as file:
        shape = json.load(file)
    with open(os.path.join(folder, "tokenizer.json")) as file:
        words = len(json.load(file)["model"]["vocab"])
    write(path + ".new", shape, words)
    os.rename(path + ".new", path)


if __name__ == "__main__":
    main()
