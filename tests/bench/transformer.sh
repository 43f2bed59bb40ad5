#!/usr/bin/env bash
# Prints a GPT of about OPS operators (10 per block). Argument: OPS.
set -euo pipefail
cat <<MODEL
smp: 1
name: transformer-${1:?operators}
let: {T: 1024, d: 768, heads: 12, layers: $(($1 / 10)), vocab: 50304}
inputs:
  tokens:  {dtype: int32, shape: [T]}
  targets: {dtype: int32, shape: [T]}
ops:
  - {op: embedding, name: wte, in: tokens, out: x, rows: vocab, features: d}
  - {op: position_embedding, name: wpe, in: x, out: x}
  - repeat: layers
    as: i
    ops:
      - {op: layernorm, name: "h{i}.ln_1", in: x, out: a}
      - {op: linear, name: "h{i}.attn.qkv", in: a, out: a, features: 3*d}
      - {op: attention, name: "h{i}.attn", in: a, out: a, heads: heads, causal: true}
      - {op: linear, name: "h{i}.attn.proj", in: a, out: a, features: d}
      - {op: add, name: "h{i}.res_1", in: [x, a], out: x}
      - {op: layernorm, name: "h{i}.ln_2", in: x, out: a}
      - {op: linear, name: "h{i}.mlp.fc", in: a, out: a, features: 4*d}
      - {op: gelu, name: "h{i}.mlp.gelu", in: a, out: a}
      - {op: linear, name: "h{i}.mlp.proj", in: a, out: a, features: d}
      - {op: add, name: "h{i}.res_2", in: [x, a], out: x}
  - {op: layernorm, name: ln_f, in: x, out: x}
  - {op: linear, name: lm_head, in: x, out: logits, features: vocab, bias: false, weight: wte.weight}
  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}
loss: loss
MODEL
