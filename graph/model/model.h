/* Reading a model, in four steps that share one smp__model:
 *   compile   each op of the file becomes a template: kind, keys and name patterns checked once
 *   count     what the repeats unroll to, by multiplication, before anything is unrolled
 *   build     every template, once per iteration of its repeats, becomes an op of the graph
 *   finish    uses, consumers, gradients, fingerprint (graph_finish.c)
 * Time and memory are O(text + unrolled ops and connections). */
#ifndef SMP_GRAPH_MODEL_MODEL_H
#define SMP_GRAPH_MODEL_MODEL_H

#include "graph/base/text.h"
#include "graph/yaml/yaml.h"
#include "graph/model/expr.h"
#include "graph/model/graph_store.h"
#include "graph/model/op.h"

enum {
    SMP__MAX_LOOPS = 64,    /* nested repeats; YAML's depth limit is reached before */
    SMP__MAX_EXPANDED = 511 /* bytes of a text attribute: the name of another op's weight */
};

/* A text with {expressions}: literal pieces and expressions in turn. */
typedef struct smp__piece {
    const char *text;
    int32_t length;
    int32_t offset; /* in the source, for columns */
    bool is_expression;
} smp__piece;

typedef struct smp__pattern {
    const char *source; /* as written; NULL: absent */
    const smp__piece *piece;
    int32_t n_piece; /* 0: no braces, the text is the source */
    smp_where where; /* of the first character */
} smp__pattern;

/* An entry of `tie:`. */
typedef struct smp__tie {
    const char *role;    /* of the op's own weight */
    smp_where where;     /* of the role */
    smp__pattern weight; /* the one that stands for it */
} smp__tie;

/* What the file says of an op that is only planned (model_declared.c). */
typedef struct smp__declared_output {
    smp_dtype dtype;
    bool batched;
    const smp_yaml_node *shape; /* NULL: not known, */
    int64_t bytes;              /* then: of a micro-batch */
} smp__declared_output;

typedef struct smp__declared_weight {
    smp__pattern name; /* of the weight itself, shared by all ops that give it */
    const smp_yaml_node *shape;
    int64_t bytes; /* without a shape; 0: that of the weight so named */
} smp__declared_weight;

typedef struct smp__declared {
    smp__declared_output *output; /* [n_out]; NULL: not given */
    smp__declared_weight *weight; /* [n_weight]; NULL: not given */
    int32_t n_weight;
    bool no_gradient;
} smp__declared;

typedef struct smp__op_template {
    const smp_op_kind *kind;
    smp_where where;
    smp__pattern name, group;
    smp__pattern *in, *out;
    int32_t n_in, n_out;
    int32_t n_attr, n_tie;
    smp__tie *tie;                     /* [n_tie] */
    smp__declared *declared;           /* NULL: its kind has kernels */
    const smp_yaml_node *stage;        /* NULL: no pin */
    const smp_op_cost_override *cost;  /* NULL: none */
    const smp_yaml_node **attr_node;   /* [n_attr]; NULL: default */
    smp__pattern *attr_pattern;        /* [n_attr], of the texts */
    const smp_attr_value *shared_attr; /* once known that no loop variable enters them */
    int64_t values; /* inputs, more outputs, ties, list items, bytes expanded: work of one op */
} smp__op_template;

typedef struct smp__block smp__block;

/* An op, or a repeated block. */
typedef struct smp__item {
    smp_where where;
    const smp_yaml_node *when;  /* NULL: always */
    smp__op_template *op;       /* NULL: a block */
    const smp_yaml_node *count; /* of the block; NULL: once */
    const char *variable;       /* NULL: none */
    smp__block *body;
} smp__item;

struct smp__block {
    smp__item *item;
    int32_t n_item;
};

typedef struct smp__model {
    smp__graph_store *store;
    smp_arena *scratch; /* templates: freed after reading */
    smp__block ops;

    /* Names in expressions. */
    const smp_yaml_node *given; /* other values of them, by name; NULL: none */
    smp_map *let_index;
    const char **let_name;
    smp_expr_name *let_value;
    int32_t n_let;
    struct {
        const char *name; /* NULL: a repeat without a variable */
        int64_t value;
    } loop[SMP__MAX_LOOPS];
    int n_loop;
    uint64_t loops_used;            /* bits of the loop variables that expressions have read */
    char unknown[SMP_MAX_NAME + 1]; /* the name that an expression did not find */

    /* Being built. */
    smp_op *op;
    smp_tensor *tensor;
    smp__name_index tensor_index; /* name -> the tensor it is bound to now */
    smp_map *tied_index;          /* "<op>.<role>" of tied weights -> the weight */
    smp_map *group_index;
    const char **group;
    size_t group_capacity;
    const smp_tensor **in_tensor; /* of one op */
    size_t in_capacity;
    smp_out_decl out[SMP_OP_MAX_OUT];
    char buffer[SMP__MAX_EXPANDED + 1];
} smp__model;

/* model_scope.c */
/* The settings that count as a map of a document; their texts go to `arena`. */
smp_status smp__model_read_settings(smp_settings settings, smp_arena *arena, smp_settings *kept,
                                    smp_yaml **out);
/* let: NULL if there is none. SMP_ERR_INPUT for a setting of no entry. */
smp_status smp__model_read_let(smp__model *m, const smp_yaml_node *let);
/* Fails unless `name` is an identifier that no `let` entry or repeat around it has. */
smp_status smp__model_check_variable(smp__model *m, const char *what, const char *name,
                                     smp_where where);
smp_status smp__model_eval_text(smp__model *m, const char *text, smp_where where, int64_t *out);
/* A scalar; `op` (NULL: none) and `what` name it in messages: "op 'h0.attn': heads: ...". */
smp_status smp__model_eval(smp__model *m, const smp_yaml_node *node, const char *op,
                           const char *what, int64_t min, int64_t max, int64_t *out);

/* model_pattern.c */
typedef enum smp__charset {
    SMP__ANY_TEXT,
    SMP__NAME_TEXT /* letters, digits and . _ - / : [ ] only, as names are written in plans */
} smp__charset;
smp_status smp__pattern_compile(smp__model *m, const smp_yaml_node *node, const char *what,
                                smp__charset charset, smp__pattern *out);
/* The expanded text, at most `max` (<= SMP__MAX_EXPANDED) bytes: m->buffer or the source. */
smp_status smp__pattern_expand(smp__model *m, const smp__pattern *pattern, size_t max,
                               const char **out);
smp_status smp__name_check(const char *name, const char *what, smp_where where);

/* model_declared.c */
enum { SMP__N_DECLARED_KEY = 3 };
extern const char *const smp__declared_keys[SMP__N_DECLARED_KEY];
smp_status smp__dtype_read(const smp_yaml_node *node, const char *what, smp_dtype *out);
/* Sets t->declared, and out and n_out where the op says `outputs`. */
smp_status smp__declared_compile(smp__model *m, const smp_yaml_node *node, smp__op_template *t);
smp_status smp__declared_check_cost(const smp__op_template *t, const smp_infer *infer);
/* Output k, all but its name. */
smp_status smp__declared_tensor(smp__model *m, const smp__op_template *t, const smp_op *op,
                                int32_t k, smp_tensor *out);
/* The weights of the op: param [n_weight]. */
smp_status smp__declared_params(smp__model *m, const smp__op_template *t, const smp_infer *infer,
                                int32_t *param);

/* model.c */
/* A list of expressions; op: NULL, or the op's name for messages. */
smp_status smp__model_shape(smp__model *m, const smp_yaml_node *node, const char *op,
                            const char *what, smp_shape *out);

/* model_template.c */
/* Bytes that one expansion costs, as work: see smp__op_template.values. */
int64_t smp__text_values(const smp__pattern *pattern);
smp_status smp__model_compile(smp__model *m, const smp_yaml_node *ops, smp__block *out);

/* model_unroll.c */
typedef smp_status (*smp__visit)(smp__model *m, smp__op_template *op, void *context);
/* Calls `visit` for every unrolled op in order, loop variables set. */
smp_status smp__model_walk(smp__model *m, const smp__block *block, smp__visit visit, void *context);
/* Ops after unrolling, and the tensors that they make; fails where they, or what they hold, exceed
 * the limits. */
smp_status smp__model_count(smp__model *m, int64_t *ops, int64_t *tensors);

/* model_attr.c */
/* Values of all attributes; m->loops_used tells whether a loop variable entered them. */
smp_status smp__model_attrs(smp__model *m, smp__op_template *t, const char *op_name,
                            const smp_attr_value **out);

/* model_op.c */
smp_status smp__model_build_op(smp__model *m, smp__op_template *t, void *unused);
/* A weight of that name, which is copied. */
smp_status smp__model_add_param(smp__model *m, const smp_infer *infer, const char *name,
                                const smp_shape *shape, int32_t *out);
/* Records "... unknown tensor 'x', did you mean ...", or where a later op makes it. */
smp_status smp__model_fail_tensor(smp__model *m, smp_where where, const char *op, const char *name);

#endif
