/* Rules that say what a model's weights are called in files of other programs, and how they lie
 * there. A rule is a line:
 *
 *   WEIGHT = TENSOR [transposed] [part K/N] [shaped DIMS] [rows R] [+ TENSOR ...]
 *
 * WEIGHT is a pattern of names of the model: `{i}` stands for a whole number, `*` (at most two) for
 * any text. TENSOR is a name of the file, in which `{i}`, `{i+1}` and `{i-1}` are filled in, and
 * `*` in turn with what it stood for. Names with spaces stand in double quotes, with \" and \\.
 * Tensors joined by `+` are stacked along the first dimension: q, k and v make qkv.
 * `{#}` is 0, 1, .. in turn: then the tensors make one item of the weight's first dimension after
 * the other, as the weights of a layer's experts, and what follows is of an item.
 *
 *   transposed   a matrix whose rows are the weight's columns
 *   part K/N     of the tensor, cut along its first dimension (when transposed) into N parts of one
 *                size, the K-th from 0
 *   shaped DIMS  the same values in another shape: numbers, `d0` .. `d5` (a dimension of the
 *                weight) and `?` (all of them equal, what is left), as in d0x3x?x?
 *   rows R       of tensors that are stacked, where they are cut: how many of the weight's rows are
 *                this one's, a number or `d1` .. `d5`; those without have equal parts of the rest
 *
 * The first rule that fits counts: on reading, the first whose tensors are all in the file; on
 * writing, the first whose pattern does. Behind all rules every weight has its own name: so a file
 * that was written without rules can be read with them. */
#ifndef SMP_GRAPH_SAFETENSORS_NAME_RULES_H
#define SMP_GRAPH_SAFETENSORS_NAME_RULES_H

#include <stdbool.h>

#include "graph/base/arena.h"
#include "graph/base/status.h"

enum { SMP_RULE_TENSORS = 8, SMP_RULE_NUMBERS = 4, SMP_RULE_TEXTS = 2, SMP_RULE_PARTS = 1024 };

typedef struct smp_rule_tensor {
    const char *name; /* with places to be filled in */
    bool transposed;
    int part, parts;           /* 0 of 1: all of it */
    const char *shaped, *rows; /* or NULL */
} smp_rule_tensor;

typedef struct smp_name_rule {
    const char *weight; /* pattern */
    bool each;          /* of the tensors' names all have `{#}` */
    int n_tensor;
    smp_rule_tensor tensor[SMP_RULE_TENSORS];
} smp_name_rule;

typedef struct smp_name_rules {
    smp_arena *arena;
    smp_name_rule *rule;
    int n;
    size_t capacity;
    const char *family; /* some are of it; NULL: none */
} smp_name_rules;

/* Adds the rules of a text, after those that are there; empty lines and those that begin with #
 * are none. SMP_ERR_INPUT with file:line:column. */
smp_status smp_name_rules_add(smp_name_rules *rules, const char *file, const char *text);
smp_status smp_name_rules_read(smp_name_rules *rules, const char *path);
void smp_name_rules_free(smp_name_rules *rules);

/* What the places of a pattern stood for. */
typedef struct smp_rule_match {
    int n_number, n_text;
    struct {
        char name[16];
        int64_t value;
    } number[SMP_RULE_NUMBERS + 1]; /* and `#` */
    struct {
        const char *begin; /* in the name */
        int length;
    } text[SMP_RULE_TEXTS];
} smp_rule_match;
bool smp_name_rule_fits(const smp_name_rule *rule, const char *weight, smp_rule_match *match);
/* Puts the item, from 0, in the place of `{#}`. */
void smp_rule_match_item(smp_rule_match *match, int64_t item);
/* The tensor's name, filled in; in the arena, NULL without memory. */
const char *smp_rule_tensor_name(const smp_rule_tensor *tensor, const smp_rule_match *match,
                                 smp_arena *arena);

#endif
