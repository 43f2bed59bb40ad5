/* Operators of a user's own (smp_op_register in smp.h): their places in the registry, and the
 * plugins that bring them. */
#ifndef SMP_GRAPH_OPS_CUSTOM_OP_H
#define SMP_GRAPH_OPS_CUSTOM_OP_H

#include "graph/model/op.h"

enum { SMP__CUSTOM_NAME = 60, SMP_MAX_PLUGINS = 64 /* of a program's options */ };

typedef struct smp__custom_op {
    smp_op_kind kind; /* first: what the registry knows */
    smp_custom_op op;
    smp_attr_desc attrs[SMP_CUSTOM_MAX_ATTRS + 1]; /* the kind's */
} smp__custom_op;

/* All that kinds of registered operators have in common. */
extern const smp_op_kind smp__custom_kind;

/* May an operator, an attribute or a weight have the name? NULL: no. */
bool smp__custom_name(const char *name);

/* How many are registered. */
int smp__custom_ops(void);
/* Behind all others; false: there is no room. */
bool smp__custom_ops_push(const smp_op_kind *kind);
/* Takes the last one out again; there is one. */
const smp_op_kind *smp__custom_ops_pop(void);

/* Forgets all but the first `n`. No graph may use them. */
void smp__custom_ops_keep(int n);

/* Loads shared objects, each once in a process, and has them register their operators. A file that
 * fails leaves none of its own behind. SMP_ERR_INPUT with a message that names the file. */
smp_status smp_plugins_load(const char *const *files, int n);

#endif
