/* What a family of Hugging Face's transformers is: the keys of its config, and its text. To add
 * one: a constant in family_<name>.c, and its name in families.c. */
#ifndef SMP_GRAPH_FOLDER_FAMILY_H
#define SMP_GRAPH_FOLDER_FAMILY_H

#include <stdbool.h>

/* A key of config.json, whose value is a number, true or false, or null, which is as if it were
 * not there. "@NAME" is no key, but a tensor of the folder's weights: 1 if it has values that are
 * not 0, and `absent` in a folder without weights. */
typedef struct smp__config_key {
    const char *name;
    const char *only;   /* the one value that is known, as JSON, or a list of those that are, of
                           which the number counts from 0 (where `absent` names an earlier
                           key, it has to be that key's); NULL: any number */
    const char *as;     /* $as stands for it in the family's text; NULL: for nothing */
    const char *absent; /* its value where it is not there, or the name of an earlier key that says
                           it; NULL: it has to be there, unless `only` is known. A list: the key has
                           one, its number is how many, and $as without `when` is the list */
    const char *when;   /* what $as is if it is not 0, with # for the number and #^-0.5 for a power
                           of it; NULL: the number */
    const char *unless; /* if it is 0 */
} smp__config_key;

/* $rope of the text: base and scaling of rotary positions, and $long_rope for longer texts, whose
 * lines begin with "[long_rope]"; $pad: `padding_idx` of an embedding;
 * $sparse: 1 for a layer that is a mixture of experts, else 0, by `mlp_only_layers` and
 * `decoder_sparse_step`; $windows and $layer_window: of each layer, by `layer_types`. A line that
 * begins with "[train]" is there in a model that is trained, one with "[as]" or "[!as]" where the
 * number of that key is not 0, or is. */
typedef struct smp__folder_family {
    const char *type;  /* `model_type` */
    const char *class; /* in transformers */
    const char *names; /* for smp-run --names */
    const char *pad; /* `pad_token_id` where it is not there, "null": none; NULL: trains all rows */
    const smp__config_key *key;
    const char *text;
} smp__folder_family;

extern const smp__folder_family *const smp__folder_families[]; /* ended by NULL */

#endif
