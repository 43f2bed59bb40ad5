/* Reading a model that stands in a test as text. */
#ifndef SMP_TESTS_GRAPH_MODEL_MODEL_TEXT_H
#define SMP_TESTS_GRAPH_MODEL_MODEL_TEXT_H

#include <string.h>

#include <cmocka.h>

#include "graph/model/graph.h"
#include "graph/model/op.h"

/* The graph of `text`, which must be good. */
static inline smp_graph *read_model(const char *text)
{
    smp_graph *graph = NULL;
    smp_status status = smp_graph_parse("m.yaml", text, strlen(text), &graph);
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_non_null(graph);
    return graph;
}

/* `text` must be refused with a message that starts with `start` and holds `part`. */
static inline void expect_error(const char *text, size_t bytes, const char *start, const char *part)
{
    smp_graph *graph = (smp_graph *)&graph;
    smp_status status = smp_graph_parse("m.yaml", text, bytes, &graph);
    if (status != SMP_ERR_INPUT)
        fail_msg("accepted, expected '%s':\n%s", part, text);
    assert_ptr_equal(graph, &graph); /* untouched on failure */
    const char *message = smp_last_error();
    if (strncmp(message, start, strlen(start)) != 0 || !strstr(message, part))
        fail_msg("got '%s', expected '%s' ... '%s':\n%s", message, start, part, text);
}

/* A small GPT with everything that the format has: let, lists, repeat, when, rebinding, tied
 * weights, a loss. */
static const char gpt_text[] =
    "smp: 1\n"
    "name: gpt\n"
    "let: {T: 8, d: 4 * 4, heads: 2, layers: 2, vocab: 2 * (d + 2), w: [d, 3*d]}\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [T]}\n"
    "  targets: {dtype: int32, shape: [T]}\n"
    "ops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: vocab, features: d}\n"
    "  - {op: position_embedding, name: wpe, in: x, out: x}\n"
    "  - repeat: layers\n"
    "    as: i\n"
    "    ops:\n"
    "      - {op: layernorm, name: \"h{i}.ln\", in: x, out: a, tie: {bias: h0.ln.bias}}\n"
    "      - {op: linear, name: \"h{i}.qkv\", in: a, out: a, features: 'w[1]'}\n"
    "      - {op: attention, name: \"h{i}.attn\", in: a, out: a, heads: heads, causal: true}\n"
    "      - {op: linear, name: \"h{i}.proj\", in: a, out: a, features: d}\n"
    "      - {op: add, name: \"h{i}.res\", in: [x, a], out: x, when: i < layers}\n"
    "  - {op: linear, name: lm_head, in: x, out: logits, features: vocab, bias: false,\n"
    "     weight: wte.weight}\n"
    "  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}\n"
    "loss: loss\n";

#endif
