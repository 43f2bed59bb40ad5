/* A Hugging Face folder as a model file: `config.json` says the class and its sizes, a family which
 * operators these are. Weights are read by smp-run, from the folder, by the family's names. */
#ifndef SMP_GRAPH_FOLDER_FOLDER_H
#define SMP_GRAPH_FOLDER_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

#include "graph/base/status.h"
#include "graph/base/text.h"

bool smp_folder_is_one(const char *path);

/* The model file of a folder. train: with the loss of the next token. *names: for --names.
 * SMP_ERR_INPUT names the key that asks for what is not known, and what is known. Without Jansson
 * all folders are refused. text: smp_text_free. */
smp_status smp_folder_import(const char *path, bool train, smp_text *text, const char **names);
/* The same of a config.json that `path` names in messages. folder: of its weights, or NULL. */
smp_status smp__folder_config(const char *path, const char *folder, const char *data, size_t bytes,
                              bool train, smp_text *text, const char **names);

#endif
