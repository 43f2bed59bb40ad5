/* GPT-2. */
#include <stddef.h>

#include "graph/folder/family.h"
#include "graph/folder/family_text.h"

static const smp__config_key GPT2[] = {
    {"vocab_size", NULL, "vocab", "50257", NULL, NULL},
    {"n_positions", NULL, "T", "1024", NULL, NULL},
    {"n_embd", NULL, "d", "768", NULL, NULL},
    {"n_layer", NULL, "layers", "12", NULL, NULL},
    {"n_head", NULL, "heads", "12", NULL, NULL},
    {"n_inner", NULL, "hidden", "0", "#", "4 * d"},
    {"layer_norm_epsilon", NULL, "eps", "1e-05", NULL, NULL},
    {"tie_word_embeddings", NULL, "tied", "1", TIED},
    DROPS("attn_pdrop"),
    DROPS("embd_pdrop"),
    DROPS("resid_pdrop"),
    {"is_causal", "true", NULL, NULL, NULL, NULL},
    {"activation_function", "\"gelu_new\"", NULL, NULL, NULL, NULL},
    {"scale_attn_weights", "true", NULL, NULL, NULL, NULL},
    {"scale_attn_by_inverse_layer_idx", "false", NULL, NULL, NULL, NULL},
    {"reorder_and_upcast_attn", "false", NULL, NULL, NULL, NULL},
    {0},
};

static const char GPT2_TEXT[] =
    "let: {T: $T, d: $d, heads: $heads, layers: $layers, hidden: $hidden, vocab: $vocab}\n" INPUTS
    "  - {op: position_embedding, name: wpe, in: x, out: x}\n" BLOCK(
        ", causal: true",
        "tanh") "  - {op: layernorm, name: ln_f, in: x, out: x, eps: $eps}\n" HEAD;

const smp__folder_family smp__family_gpt2 = {"gpt2", "GPT2LMHeadModel", "hf-gpt2", NULL,
                                             GPT2,   GPT2_TEXT};
