/* A Hugging Face folder as a model file: `config.json` says the class and its sizes, a family which
 * operators these are. Weights are read by smp-run, from the folder, by the family's names. */
#ifndef SMP_GRAPH_IMPORT_FOLDER_H
#define SMP_GRAPH_IMPORT_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

#include "graph/base/status.h"
#include "graph/base/text.h"

/* A key of config.json, whose value is a number, true or false, or null, which is as if it were
 * not there. */
typedef struct smp__config_key {
    const char *name;
    const char *only;   /* the one value that is known, as JSON; NULL: any number */
    const char *as;     /* $as stands for it in the family's text; NULL: for nothing */
    const char *absent; /* its value where it is not there, or the name of an earlier key that says
                           it; NULL: it has to be there, unless `only` is known */
    const char *when;   /* what $as is if it is not 0, with # for the number; NULL: the number */
    const char *unless; /* if it is 0 */
} smp__config_key;

/* $rope of the text: base and scaling of rotary positions. A line that begins with "[train]" is
 * there in a model that is trained. */
typedef struct smp__folder_family {
    const char *type;  /* `model_type` */
    const char *class; /* in transformers */
    const char *names; /* for smp-run --names */
    bool pads;         /* row `pad_token_id` of its first embedding is not trained there */
    const smp__config_key *key;
    const char *text;
} smp__folder_family;

extern const smp__folder_family smp__folder_families[]; /* ended by no type */

bool smp_folder_is_one(const char *path);

/* The model file of a folder. train: with the loss of the next token. *names: for --names.
 * SMP_ERR_INPUT names the key that asks for what is not known, and what is known. Without Jansson
 * all folders are refused. text: smp_text_free. */
smp_status smp_folder_import(const char *path, bool train, smp_text *text, const char **names);
/* The same of a config.json that `path` names in messages. */
smp_status smp__folder_config(const char *path, const char *data, size_t bytes, bool train,
                              smp_text *text, const char **names);

#endif
