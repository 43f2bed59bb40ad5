/* Models for every rule by which operators are split. */
#ifndef SMP_TESTS_GRAPH_SPLIT_SPLIT_CASES_H
#define SMP_TESTS_GRAPH_SPLIT_SPLIT_CASES_H

#include <stddef.h>

/* t: positions, d: features, c: channels, all multiples of what 4 devices and 3 blocks need. The op
 * under test is `op`; before it stand some with weights, so that its input gradients count. */
typedef struct op_case {
    const char *inputs, *ops, *shape; /* of the target of an mse; NULL: y is the loss */
} op_case;

#define ROWS_IN "x: {dtype: float32, shape: [t, d]}"
#define FROM_H "  - {op: linear, name: pre, in: x, out: h, features: d}\n"
#define PAIR                                                                                       \
    "  - {op: linear, name: a, in: x, out: a, features: d, bias: false}\n"                         \
    "  - {op: linear, name: b, in: x, out: b, features: d, bias: false}\n"
/* A bias of the keys has no gradient but for rounding. */
#define QKV                                                                                        \
    "  - {op: linear, name: q, in: x, out: q, features: d}\n"                                      \
    "  - {op: linear, name: k, in: x, out: k, features: d, bias: false}\n"                         \
    "  - {op: linear, name: v, in: x, out: v, features: d}\n"
#define ROUTED                                                                                     \
    FROM_H                                                                                         \
    "  - {op: linear, name: router, in: x, out: l, features: 4}\n"
#define PACKED "  - {op: linear, name: pre, in: x, out: h, features: 3 * d}\n"
#define IMAGE "x: {dtype: float32, shape: [4, 6, 6]}"
#define FROM_C "  - {op: conv2d, name: pre, in: x, out: h, channels: c, kernel: 3, padding: 1}\n"
#define ONE(line)                                                                                  \
    {                                                                                              \
        ROWS_IN, FROM_H "  - {op: " line ", name: op, in: h, out: y}\n", "[t, d]"                  \
    }
#define ON_IMAGE(line, shape)                                                                      \
    {                                                                                              \
        IMAGE, FROM_C "  - {op: " line ", name: op, in: h, out: y}\n", shape                       \
    }

static const op_case CASES[] = {
    {ROWS_IN, FROM_H "  - {op: linear, name: op, in: h, out: y, features: 2 * d}\n", "[t, 2 * d]"},
    {ROWS_IN, FROM_H "  - {op: linear, name: op, in: h, out: y, features: d, bias: false}\n",
     "[t, d]"},
    {"x: {dtype: int32, shape: [t]}",
     "  - {op: embedding, name: op, in: x, out: y, rows: 16, features: d, padding_idx: 5}\n",
     "[t, d]"},
    ONE("dropout, p: 0.4"),
    ONE("position_embedding"),
    ONE("layernorm"),
    ONE("rmsnorm"),
    ONE("softmax"),
    ONE("gelu"),
    ONE("relu"),
    ONE("silu"),
    ONE("sigmoid"),
    ONE("tanh"),
    ONE("scale, factor: 0.5"),
    ONE("mean_pool"),
    {ROWS_IN ", labels: {dtype: int32, shape: [t]}",
     FROM_H "  - {op: cross_entropy, name: op, in: [h, labels], out: y}\n", NULL},
    {ROWS_IN ", labels: {dtype: int32, shape: [t]}",
     FROM_H "  - {op: cross_entropy, name: op, in: [h, labels], out: y, label_smoothing: 0.2}\n",
     NULL},
    {ROWS_IN ", labels: {dtype: int32, shape: [t]}",
     FROM_H "  - {op: linear_cross_entropy, name: op, in: [h, labels], out: y, features: 2 * d, "
            "label_smoothing: 0.2}\n",
     NULL},
    {"x: {dtype: float32, shape: [70, d]}, labels: {dtype: int32, shape: [70]}",
     FROM_H "  - {op: linear_cross_entropy, name: op, in: [h, labels], out: y, features: d, "
            "bias: false, chunk: 64}\n",
     NULL},
    {ROWS_IN, PAIR "  - {op: add, name: op, in: [a, b], out: y}\n", "[t, d]"},
    {ROWS_IN, PAIR "  - {op: add, name: op, in: [a, b, x, a, b, x], out: y}\n", "[t, d]"},
    {ROWS_IN, PAIR "  - {op: sub, name: op, in: [a, b], out: y}\n", "[t, d]"},
    {ROWS_IN, PAIR "  - {op: mul, name: op, in: [a, b], out: y}\n", "[t, d]"},
    {ROWS_IN,
     "  - {op: linear, name: s, in: x, out: s, features: 1}\n" FROM_H
     "  - {op: mul_rows, name: op, in: [h, s], out: y}\n",
     "[t, d]"},
    {ROWS_IN, QKV "  - {op: attention, name: op, in: [q, k, v], out: y, heads: 4, causal: true}\n",
     "[t, d]"},
    {ROWS_IN ", m: {dtype: int32, shape: [t]}",
     QKV "  - {op: attention, name: op, in: [q, k, v, m], out: y, heads: 8, buckets: 8}\n",
     "[t, d]"},
    {ROWS_IN,
     "  - {op: linear, name: q, in: x, out: q, features: 2 * d}\n"
     "  - {op: linear, name: k, in: x, out: k, features: d, bias: false}\n"
     "  - {op: linear, name: v, in: x, out: v, features: d}\n"
     "  - {op: attention, name: op, in: [q, k, v], out: y, heads: 8, kv_heads: 4}\n",
     "[t, 2 * d]"},
    {ROWS_IN, PACKED "  - {op: attention, name: op, in: h, out: y, heads: 4, causal: true}\n",
     "[t, d]"},
    {ROWS_IN ", m: {dtype: int32, shape: [t]}",
     PACKED "  - {op: attention, name: op, in: [h, m], out: y, heads: 2, alibi: true}\n", "[t, d]"},
    {ROWS_IN,
     QKV "  - {op: attention, name: op, in: [q, k, v], out: y, heads: 4, causal: true, "
         "window: 3, alibi: true}\n",
     "[t, d]"},
    {ROWS_IN,
     QKV "  - {op: attention, name: op, in: [q, k, v], out: y, heads: 4, causal: true, "
         "softcap: 0.5}\n",
     "[t, d]"},
    {ROWS_IN ", z: {dtype: float32, shape: [2 * t, d]}, m: {dtype: int32, shape: [2 * t]}",
     "  - {op: linear, name: q, in: x, out: q, features: d}\n"
     "  - {op: linear, name: k, in: z, out: k, features: d, bias: false}\n"
     "  - {op: linear, name: v, in: z, out: v, features: d}\n"
     "  - {op: attention, name: op, in: [q, k, v, m], out: y, heads: 4}\n",
     "[t, d]"},
    {"x: {dtype: float32, shape: [36 * t, 12]}, z: {dtype: float32, shape: [t, 12]}",
     /* far fewer keys: no query is too late for them */
     "  - {op: linear, name: q, in: x, out: q, features: 12}\n"
     "  - {op: linear, name: k, in: z, out: k, features: 12}\n"
     "  - {op: linear, name: v, in: z, out: v, features: 12}\n"
     "  - {op: attention, name: op, in: [q, k, v], out: y, heads: 2}\n",
     "[36 * t, 12]"},
    {"x: {dtype: float32, shape: [36 * t, 12]}", /* several blocks of queries on a device */
     "  - {op: linear, name: pre, in: x, out: h, features: 36}\n"
     "  - {op: attention, name: op, in: h, out: y, heads: 2, causal: true}\n",
     "[36 * t, 12]"},
    {"x: {dtype: float32, shape: [36 * t, 12]}",
     "  - {op: linear, name: pre, in: x, out: h, features: 36}\n"
     "  - {op: attention, name: op, in: h, out: y, heads: 2, causal: true, window: 50}\n",
     "[36 * t, 12]"},
    ONE("rope, heads: 4"),
    {ROWS_IN, PACKED "  - {op: rope, name: op, in: h, out: y, heads: 12, rotated: 8}\n",
     "[t, 3 * d]"},
    {ROWS_IN,
     ROUTED "  - {op: expert_dispatch, name: op, in: [h, l], out: y, top_k: 3, capacity: 4}\n",
     "[4, t, d]"},
    {ROWS_IN, ROUTED "  - {op: expert_dispatch, name: op, in: [h, l], out: y, capacity: 0.5}\n",
     "[4, t / 4, d]"},
    {ROWS_IN, /* one expert's alone: as many rounds as devices */
     ROUTED "  - {op: scale, name: off, in: l, out: off, factor: 0}\n"
            "  - {op: expert_dispatch, name: op, in: [h, off], out: y, top_k: 1, capacity: 0}\n",
     "[4, t, d]"},
    {ROWS_IN, ROUTED "  - {op: load_balance, name: op, in: l, out: y, coefficient: 0.3}\n",
     "[t, 4]"},
    {ROWS_IN,
     ROUTED "  - {op: expert_dispatch, name: send, in: [h, l], out: e, capacity: 1}\n"
            "  - {op: expert_linear, name: op, in: e, out: y, features: 2 * d}\n",
     "[4, t / 2, 2 * d]"},
    {ROWS_IN,
     ROUTED "  - {op: expert_dispatch, name: send, in: [h, l], out: e, capacity: 1}\n"
            "  - {op: expert_combine, name: op, in: [e, l], out: y, capacity: 1}\n",
     "[t, d]"},
    {ROWS_IN,
     ROUTED "  - {op: expert_dispatch, name: send, in: [h, l], out: e, top_k: 3, capacity: 0.5}\n"
            "  - {op: expert_combine, name: op, in: [e, l], out: y, top_k: 3, capacity: 0.5, "
            "gates: all}\n",
     "[t, d]"},
    ON_IMAGE("conv2d, channels: 2 * c, kernel: 3, stride: 2", "[2 * c, 2, 2]"),
    ON_IMAGE("conv2d, channels: c, kernel: 1, groups: 4, bias: false", "[c, 6, 6]"),
    ON_IMAGE("batchnorm", "[c, 6, 6]"),
    ON_IMAGE("groupnorm, groups: 4", "[c, 6, 6]"),
    ON_IMAGE("max_pool, kernel: 2", "[c, 3, 3]"),
    ON_IMAGE("avg_pool, kernel: 2", "[c, 3, 3]"),
    ON_IMAGE("upsample, factor: 2", "[c, 12, 12]"),
    ON_IMAGE("global_avg_pool", "[c]"),
    ON_IMAGE("flatten", "[36 * c]"),
};

#endif
