/* config.json of a folder, key by key, into the text of its family. */
#include "graph/folder/family.h"
#include "graph/folder/folder.h"
#include "graph/safetensors/weights_file.h"
#include "graph/safetensors/weights_format.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool smp_folder_is_one(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

#ifdef SMP_HAVE_JANSSON
#include <jansson.h>

enum { MOST_CONFIG = 1 << 20, MOST_KEYS = 40, MOST_VALUE = 256, MOST_LAYERS = 4096 };

/* They change nothing of the network, or only how it is started or asked. */
static const char *const IGNORED[] = {"_name_or_path",
                                      "_attn_implementation",
                                      "architectures",
                                      "model_type",
                                      "dtype",
                                      "torch_dtype",
                                      "transformers_version",
                                      "use_cache",
                                      "bos_token_id",
                                      "eos_token_id",
                                      "pad_token_id",
                                      "sep_token_id",
                                      "unk_token_id",
                                      "cls_token_id",
                                      "initializer_range",
                                      "id2label",
                                      "label2id",
                                      "problem_type",
                                      "return_dict",
                                      "output_attentions",
                                      "output_hidden_states",
                                      "task_specific_params",
                                      "tokenizer_class",
                                      "summary_activation",
                                      "summary_first_dropout",
                                      "summary_proj_to_labels",
                                      "summary_type",
                                      "summary_use_proj",
                                      "max_window_layers",
                                      "rope_theta",
                                      "rope_scaling",
                                      "rope_parameters",
                                      "layer_types",
                                      "chunk_size_feed_forward",
                                      "classifier_dropout",
                                      "classif_dropout",
                                      "decoder_start_token_id",
                                      "forced_bos_token_id",
                                      "forced_eos_token_id",
                                      "early_stopping",
                                      "num_beams",
                                      "length_penalty",
                                      "max_length",
                                      "min_length",
                                      "prefix",
                                      "force_bos_token_to_be_generated",
                                      "_num_labels",
                                      "no_repeat_ngram_size",
                                      "init_std",
                                      "initializer_factor",
                                      "out_features",
                                      "out_indices",
                                      "stage_names",
                                      "output_past",
                                      "tie_weights_",
                                      "qa_dropout",
                                      "seq_classif_dropout",
                                      "encoder_stride",
                                      "pooler_output_size",
                                      "pooler_act",
                                      "n_ctx",
                                      "auto_map",
                                      "cache_implementation",
                                      NULL};

/* Known where they are false: what they ask for then is what there is. */
static const char *const UNUSED[] = {"is_decoder",
                                     "is_encoder_decoder",
                                     "add_cross_attention",
                                     "tie_encoder_decoder",
                                     "torchscript",
                                     "use_bfloat16",
                                     "attention_bias",
                                     "mlp_bias",
                                     "use_sliding_window",
                                     "gradient_checkpointing",
                                     "use_mask_token",
                                     "add_bias_logits",
                                     "add_final_layer_norm",
                                     "normalize_before",
                                     "static_position_embeddings",
                                     NULL};

/* In the text of a family whose layers differ. */
static const char WINDOWS[] = "$windows";

/* Which layers are mixtures of experts. */
static const char *const SPARSE[] = {"mlp_only_layers", "decoder_sparse_step", NULL};

/* Left out, with a remark: SMP's dropout has other random numbers, and none of scores. */
static const char *const DROPOUT[] = {"dropout",
                                      "dropout_rate",
                                      "activation_dropout",
                                      "encoder_layerdrop",
                                      "decoder_layerdrop",
                                      "attn_pdrop",
                                      "embd_pdrop",
                                      "resid_pdrop",
                                      "attention_dropout",
                                      "hidden_dropout_prob",
                                      "attention_probs_dropout_prob",
                                      NULL};

typedef struct reading {
    const char *path, *folder; /* of config.json; where weights are, NULL: nowhere */
    const json_t *config;
    const smp__folder_family *family;
    double number[MOST_KEYS]; /* of its keys */
    smp_text rope, pad;       /* what $rope and $pad stand for */
    smp_text long_rope;       /* and $long_rope: of texts longer than those it is for; or empty */
    int n_layer;              /* of a list of them; else 0 */
    bool slides;              /* some of them look at a window */
    bool train;
} reading;

static bool listed(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (strcmp(*list, name) == 0)
            return true;
    return false;
}

static const smp__config_key *key_of(const reading *r, const char *name, int *index)
{
    *index = 0;
    for (const smp__config_key *key = r->family->key; key->name; key++, ++*index)
        if (strcmp(key->name, name) == 0)
            return key;
    return NULL;
}

static const json_t *given(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

/* A value as a message shows it. */
static smp_status fail_value(const reading *r, const char *name, const json_t *value,
                             const char *expected)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    const smp_status status = smp_fail(SMP_ERR_INPUT, "%s: %s: got %.80s, expected %s", r->path,
                                       name, text ? text : "something", expected);
    free(text);
    return status;
}

/* Of true and false 1 and 0, of an object how many it has (classes). */
static bool number_of(const json_t *value, double *out)
{
    *out = json_is_boolean(value)  ? json_is_true(value)
           : json_is_object(value) ? (double)json_object_size(value)
                                   : json_number_value(value);
    return json_is_boolean(value) || json_is_object(value) ||
           (json_is_number(value) && isfinite(*out));
}

static bool same_value(const json_t *a, const json_t *b)
{
    return json_equal(a, b) ||
           (json_is_number(a) && json_is_number(b) && json_number_value(a) == json_number_value(b));
}

/* Which of the known values it is; `only` is one, or a list of them. `absent` may name an earlier
 * key, which says which it has to be. */
static smp_status read_known(reading *r, const smp__config_key *key, int index)
{
    const json_t *value = given(r->config, key->name);
    char expected[MOST_VALUE];
    int other;
    const bool said = key->absent && key_of(r, key->absent, &other);
    json_t *known = json_loads(key->only, JSON_DECODE_ANY, NULL);
    bool found = !value || same_value(value, known);
    r->number[index] = said                    ? r->number[other]
                       : !value && key->absent ? strtod(key->absent, NULL)
                                               : 0;
    for (size_t i = 0; i < json_array_size(known) && !found; i++) {
        if (said && (double)i != r->number[other])
            continue;
        if ((found = same_value(value, json_array_get(known, i))))
            r->number[index] = (double)i;
    }
    json_decref(known);
    snprintf(expected, sizeof expected, said ? "what %s says" : "%s",
             said ? key->absent : key->only);
    return found ? SMP_OK : fail_value(r, key->name, value, expected);
}

static bool is_list(const smp__config_key *key)
{
    return key->absent && key->absent[0] == '[';
}

/* Of whole numbers above 0. */
static smp_status read_list(reading *r, const smp__config_key *key, int index)
{
    static const char EXPECTED[] = "a list of whole numbers from 1 on";
    const json_t *value = given(r->config, key->name);
    json_t *absent = json_loads(key->absent, JSON_DECODE_ANY, NULL);
    const size_t n = json_array_size(value ? value : absent);
    json_decref(absent);
    if (n == 0)
        return fail_value(r, key->name, value, EXPECTED);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_int_t item = json_integer_value(json_array_get(value, i));
        if (item < 1 || item > INT32_MAX)
            return fail_value(r, key->name, value, EXPECTED);
    }
    r->number[index] = (double)n;
    return SMP_OK;
}

static void put_list(const reading *r, const smp__config_key *key, smp_text *out)
{
    const json_t *value = given(r->config, key->name);
    smp_text_append(out, "%s", value ? "[" : key->absent);
    for (size_t i = 0; i < json_array_size(value); i++)
        smp_text_append(out, "%s%lld", i > 0 ? ", " : "",
                        (long long)json_integer_value(json_array_get(value, i)));
    smp_text_append(out, "%s", value ? "]" : "");
}

static bool has_weights(const char *folder)
{
    static const char *const NAMES[] = {"model.safetensors", "model.safetensors.index.json"};
    struct stat about;
    bool found = false;
    for (int i = 0; i < 2 && folder && !found; i++) {
        smp_text path = {0};
        smp_text_append(&path, "%s/%s", folder, NAMES[i]);
        found = path.data && stat(path.data, &about) == 0;
        smp_text_free(&path);
    }
    return found;
}

/* Has it values that are not 0? A tensor that is not there has none. */
static smp_status look_at(smp_weights_file *file, const char *name, double *out)
{
    float values[1024];
    const int32_t tensor = smp_weights_file_find(file, name);
    const int64_t n = tensor < 0 ? 0 : file->tensor[tensor].elements;
    if (n > 0 && !file->tensor[tensor].dtype->to_float)
        return smp_fail(SMP_ERR_INPUT, "%s: tensor %s: expected floats", file->path, name);
    *out = 0;
    for (int64_t at = 0, some = 1024; at < n && *out == 0; at += some) {
        some = n - at < some ? n - at : some;
        SMP_TRY(smp_weights_file_read(file, tensor, at, some, values));
        for (int64_t i = 0; i < some; i++)
            *out = values[i] != 0 ? 1 : *out;
    }
    return SMP_OK;
}

static smp_status read_tensor(reading *r, const smp__config_key *key, int index)
{
    smp_weights_file *file = NULL;
    r->number[index] = strtod(key->absent, NULL);
    if (!has_weights(r->folder))
        return SMP_OK;
    SMP_TRY(smp_weights_file_open(r->folder, &file));
    smp_status status = look_at(file, key->name + 1, &r->number[index]);
    if (status == SMP_OK && key->only && r->number[index] != 0)
        status = smp_fail(SMP_ERR_INPUT, "%s: tensor %s: SMP has none, expected zeroes", file->path,
                          key->name + 1);
    smp_weights_file_close(file);
    return status;
}

static smp_status read_key(reading *r, const smp__config_key *key, int index)
{
    const json_t *value = given(r->config, key->name);
    if (key->name[0] == '@')
        return read_tensor(r, key, index);
    if (key->only)
        return read_known(r, key, index);
    if (is_list(key))
        return read_list(r, key, index);
    int other;
    const bool is_null = json_is_null(json_object_get(r->config, key->name));
    if (is_null && key->unless) /* none */
        return SMP_OK;
    if (!value && !key->absent)
        return smp_fail(SMP_ERR_INPUT, "%s: has no %s", r->path, key->name);
    if (!value)
        r->number[index] =
            key_of(r, key->absent, &other) ? r->number[other] : strtod(key->absent, NULL);
    else if (!number_of(value, &r->number[index]) || r->number[index] < 0)
        return fail_value(r, key->name, value, "a number from 0 on");
    return SMP_OK;
}

static const char ORIGINAL[] = "original_max_position_embeddings";

/* Its parameter of that name, or what it is without; all are above 0. */
static smp_status parameter(const reading *r, const json_t *rope, const char *name, double absent,
                            double *out)
{
    const json_t *value = given(rope, name);
    *out = absent;
    if (value && (!number_of(value, out) || !(*out > 0)))
        return fail_value(r, name, value, "a number above 0");
    return value || absent > 0 ? SMP_OK
                               : smp_fail(SMP_ERR_INPUT, "%s: rope: has no %s", r->path, name);
}

/* What else of it changes something is not known here. */
static smp_status check_rope(const reading *r, const json_t *rope)
{
    static const char *const KNOWN[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "factor",
                                        ORIGINAL,
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "beta_fast",
                                        "beta_slow",
                                        "attention_factor",
                                        "short_factor",
                                        "long_factor",
                                        NULL};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)rope, name, value)
    {
        double number;
        if (listed(KNOWN, name) || json_is_null(value) ||
            (strcmp(name, "partial_rotary_factor") == 0 && number_of(value, &number) &&
             number == 1))
            continue;
        return fail_value(r, name, value, "nothing, of the positions (rope)");
    }
    return SMP_OK;
}

static double positions_of(const reading *r)
{
    int index;
    return key_of(r, "max_position_embeddings", &index) ? r->number[index] : 0;
}

/* Positions that it was trained with first; a key of the class itself goes before the rope's. */
static smp_status read_original(const reading *r, const json_t *rope, double *out)
{
    int own;
    SMP_TRY(parameter(r, rope, ORIGINAL, positions_of(r), out));
    const json_t *by = key_of(r, ORIGINAL, &own) ? r->config : rope;
    if (by != rope)
        SMP_TRY(parameter(r, by, ORIGINAL, r->number[own], out));
    return *out > INT32_MAX ? fail_value(r, ORIGINAL, given(by, ORIGINAL), "fewer positions")
                            : SMP_OK;
}

static smp_status put_factors(const reading *r, const json_t *rope, const char *name, smp_text *out)
{
    const json_t *factors = given(rope, name), *one;
    size_t i;
    if (json_array_size(factors) == 0)
        return fail_value(r, name, factors, "a list of numbers");
    json_array_foreach(factors, i, one)
    {
        if (!json_is_number(one))
            return fail_value(r, name, factors, "a list of numbers");
        smp_text_append(out, "%s%.17g", i > 0 ? ", " : ", factors: [", json_number_value(one));
    }
    return SMP_OK;
}

/* As transformers does: by the ratio of positions now and first, and short factors for texts that
 * are not longer than those first ones. The length of a text is the model file's. */
static smp_status read_longrope(reading *r, const json_t *rope, double base)
{
    double original = 0, factor = 0, magnitude = 0;
    SMP_TRY(read_original(r, rope, &original));
    SMP_TRY(parameter(r, rope, "factor", positions_of(r) / original, &factor));
    const double usual = factor > 1 ? sqrt(1 + log(factor) / log(original)) : 1;
    SMP_TRY(parameter(r, rope, "attention_factor", usual, &magnitude));
    for (int is_long = 0; is_long < 2; is_long++) {
        smp_text *out = is_long ? &r->long_rope : &r->rope;
        smp_text_append(out, ", base: %.17g, scaling: longrope, attention_factor: %.17g", base,
                        magnitude);
        SMP_TRY(put_factors(r, rope, is_long ? "long_factor" : "short_factor", out));
        smp_text_append(out, "], when: \"T %s %.0f\"", is_long ? ">" : "<=", floor(original));
    }
    return SMP_OK;
}

/* Base and scaling of rotary positions: `rope_parameters` since transformers 5, which takes the
 * older `rope_scaling` where it is given, beside `rope_theta`. */
static smp_status read_rope(reading *r)
{
    const json_t *rope = given(r->config, "rope_scaling");
    if (!rope || (json_is_object(rope) && json_object_size(rope) == 0))
        rope = given(r->config, "rope_parameters");
    const json_t *type = given(rope, "rope_type");
    type = type ? type : given(rope, "type");
    const char *kind = type ? json_string_value(type) : "default";
    int index;
    double base = key_of(r, "rope_theta", &index) ? r->number[index] : 10000, factor = 1,
           original = 0, low = 0, high = 0, magnitude = 0;
    if (!kind || (rope && !json_is_object(rope)))
        return fail_value(r, "rope_type", type ? type : rope, "its name");
    SMP_TRY(parameter(r, r->config, "rope_theta", base, &base));
    SMP_TRY(parameter(r, rope, "rope_theta", base, &base));
    if (rope)
        SMP_TRY(check_rope(r, rope));
    /* its other names: those of the first configs of Phi-3 */
    if (strcmp(kind, "longrope") == 0 ||
        (key_of(r, ORIGINAL, &index) && (strcmp(kind, "su") == 0 || strcmp(kind, "yarn") == 0)))
        return read_longrope(r, rope, base);
    smp_text_append(&r->rope, ", base: %.17g", base);
    if (strcmp(kind, "dynamic") == 0) /* another base for longer texts */
        smp_text_append(&r->rope, ", original_positions: %.15g", positions_of(r));
    if (strcmp(kind, "default") == 0 || strcmp(kind, "dynamic") == 0)
        return SMP_OK;
    const bool llama = strcmp(kind, "llama3") == 0;
    if (!llama && strcmp(kind, "linear") != 0 && strcmp(kind, "yarn") != 0)
        return fail_value(r, "rope_type", type,
                          "default, linear, dynamic, llama3, yarn or longrope");
    SMP_TRY(parameter(r, rope, "factor", 0, &factor));
    smp_text_append(&r->rope, ", scaling: %s, factor: %.17g", kind, factor);
    if (strcmp(kind, "linear") == 0)
        return SMP_OK;
    SMP_TRY(read_original(r, rope, &original));
    SMP_TRY(parameter(r, rope, llama ? "low_freq_factor" : "beta_slow", 1, &low));
    SMP_TRY(parameter(r, rope, llama ? "high_freq_factor" : "beta_fast", llama ? 4 : 32, &high));
    smp_text_append(&r->rope, ", original_positions: %.17g, %s: %.17g, %s: %.17g", original,
                    llama ? "low_freq_factor" : "beta_slow", low,
                    llama ? "high_freq_factor" : "beta_fast", high);
    if (llama || !given(rope, "attention_factor"))
        return SMP_OK;
    SMP_TRY(parameter(r, rope, "attention_factor", 0, &magnitude));
    smp_text_append(&r->rope, ", attention_factor: %.17g", magnitude);
    return SMP_OK;
}

/* Does layer `index` look at a window? Without types every other one does, or, where windows are
 * used or not, those from a layer on. */
static bool is_sliding(const reading *r, int index)
{
    const json_t *types = given(r->config, "layer_types");
    const json_t *first = given(r->config, "max_window_layers");
    int used;
    if (types)
        return strcmp(json_string_value(json_array_get(types, (size_t)index)),
                      "sliding_attention") == 0;
    if (!key_of(r, "use_sliding_window", &used))
        return index % 2 == 0;
    return r->number[used] > 0 && !json_is_null(json_object_get(r->config, "sliding_window")) &&
           index >= (first ? json_number_value(first) : 28);
}

/* Of a family whose layers differ. */
static smp_status check_types(reading *r, const json_t *types)
{
    const json_t *one;
    size_t i;
    int used;
    const bool full = key_of(r, "use_sliding_window", &used) && r->number[used] == 0;
    if (types && json_array_size(types) != (size_t)r->n_layer)
        return fail_value(r, "layer_types", types, "a list of one for each layer");
    json_array_foreach(types, i, one)
    {
        const char *type = json_string_value(one);
        if (!type || (strcmp(type, "full_attention") != 0 &&
                      (full || strcmp(type, "sliding_attention") != 0)))
            return fail_value(r, "layer_types", one,
                              full ? "full_attention" : "sliding_attention or full_attention");
    }
    for (int layer = 0; layer < r->n_layer; layer++)
        r->slides |= is_sliding(r, layer);
    return SMP_OK;
}

/* All layers attend alike, to what the other keys say, or as their types. */
static smp_status check_layers(reading *r)
{
    const json_t *types = given(r->config, "layer_types");
    const json_t *size = json_object_get(r->config, "sliding_window");
    int used, index;
    const bool known = key_of(r, "sliding_window", &index),
               asked = key_of(r, "use_sliding_window", &used),
               differ = strstr(r->family->text, WINDOWS);
    const bool window = !asked && known && r->number[index] > 0;
    if (types && !json_is_array(types))
        return fail_value(r, "layer_types", types, "a list of one for each layer");
    if (differ)
        SMP_TRY(check_types(r, types));
    if (known && size && r->number[index] == 0 && (r->slides || (!asked && !json_is_null(size))))
        return fail_value(r, "sliding_window", size, "a number above 0");
    for (size_t i = 0; i < json_array_size(types) && !differ; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        const char *wanted = window ? "sliding_attention" : "full_attention";
        if (!type || strcmp(type, wanted) != 0)
            return fail_value(r, "layer_types", json_array_get(types, i), wanted);
    }
    return SMP_OK;
}

/* The row of tokens that transformers does not train; below 0 counted from the end. */
static smp_status read_pad(reading *r)
{
    const char *absent = r->family->pad;
    const json_t *value = json_object_get(r->config, "pad_token_id");
    int vocab;
    if (!absent || json_is_null(value) || (!value && strcmp(absent, "null") == 0))
        return SMP_OK;
    const bool known = key_of(r, "vocab_size", &vocab);
    const double rows = known ? r->number[vocab] : 0;
    double row = value ? json_number_value(value) : strtod(absent, NULL);
    if ((value && !json_is_integer(value)) || row < -rows || row >= rows)
        return fail_value(r, "pad_token_id", value, "a token");
    row += row < 0 ? rows : 0;
    smp_text_append(&r->pad, ", padding_idx: %.15g", row);
    return SMP_OK;
}

/* Is layer `index` a mixture, in a family with `$sparse`? */
static bool is_sparse(const reading *r, json_int_t index)
{
    const json_t *step = given(r->config, "decoder_sparse_step"), *layer;
    size_t i;
    json_array_foreach(given(r->config, "mlp_only_layers"), i,
                       layer) if (json_integer_value(layer) == index) return false;
    return !step || (index + 1) % json_integer_value(step) == 0;
}

static smp_status check_sparse(const reading *r)
{
    const json_t *step = given(r->config, "decoder_sparse_step"), *layer;
    const json_t *dense = given(r->config, "mlp_only_layers");
    size_t i;
    if (step && json_integer_value(step) < 1)
        return fail_value(r, "decoder_sparse_step", step, "a whole number above 0");
    if (dense && !json_is_array(dense))
        return fail_value(r, "mlp_only_layers", dense, "numbers of layers");
    json_array_foreach(dense, i, layer) if (!json_is_integer(layer)) return fail_value(
        r, "mlp_only_layers", dense, "numbers of layers");
    return SMP_OK;
}

/* How many there are, of a family that has a list of them. */
static smp_status count_layers(reading *r)
{
    static const char NAME[] = "num_hidden_layers";
    int index;
    if (!(strstr(r->family->text, "$sparse") || strstr(r->family->text, WINDOWS)) ||
        !key_of(r, NAME, &index))
        return SMP_OK;
    if (r->number[index] > MOST_LAYERS)
        return fail_value(r, NAME, given(r->config, NAME), "at most 4096 layers");
    r->n_layer = (int)r->number[index];
    return SMP_OK;
}

/* Every key is one of the family, or changes nothing. */
static smp_status check_keys(const reading *r)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)r->config, name, value)
    {
        int index;
        if (json_is_null(value) || (json_is_false(value) && listed(UNUSED, name)) ||
            key_of(r, name, &index) || listed(IGNORED, name) || listed(DROPOUT, name) ||
            (listed(SPARSE, name) && strstr(r->family->text, "$sparse")))
            continue;
        return fail_value(r, name, value, "nothing: SMP does not know what it asks for");
    }
    return SMP_OK;
}

static smp_status read_keys(reading *r)
{
    int index = 0;
    for (const smp__config_key *key = r->family->key; key->name; key++, index++) {
        if (index == MOST_KEYS)
            return smp_fail(SMP_ERR_FAILED, "family %s has too many keys", r->family->type);
        SMP_TRY(read_key(r, key, index));
    }
    SMP_TRY(check_keys(r));
    SMP_TRY(count_layers(r));
    SMP_TRY(check_layers(r));
    SMP_TRY(read_pad(r));
    SMP_TRY(check_sparse(r));
    return read_rope(r);
}

static void put_phrase(const char *phrase, double number, smp_text *out)
{
    while (*phrase) {
        char *end = NULL;
        if (*phrase != '#')
            smp_text_append_bytes(out, phrase++, 1);
        else if (phrase[1] != '^')
            smp_text_append(out, "%.15g", number), phrase++;
        else
            smp_text_append(out, "%.17g", pow(number, strtod(phrase + 2, &end))), phrase = end;
    }
}

/* A list that layers look up; nothing if all see everything. */
static void put_windows(const reading *r, smp_text *out)
{
    int window;
    key_of(r, "sliding_window", &window);
    for (int i = 0; r->slides && i < r->n_layer; i++)
        if (is_sliding(r, i))
            smp_text_append(out, "%s%.15g", i > 0 ? ", " : ", windows: [", r->number[window]);
        else
            smp_text_append(out, "%sT", i > 0 ? ", " : ", windows: [");
    smp_text_append(out, "%s", r->slides ? "]" : "");
}

static void put_value(const reading *r, const char *name, size_t length, smp_text *out)
{
    const struct {
        const char *name;
        const smp_text *text;
    } made[] = {{"rope", &r->rope}, {"long_rope", &r->long_rope}, {"pad", &r->pad}};
    for (int i = 0; i < 3; i++)
        if (length == strlen(made[i].name) && memcmp(name, made[i].name, length) == 0) {
            smp_text_append(out, "%s", made[i].text->data ? made[i].text->data : "");
            return;
        }
    if (length == strlen("sparse") && memcmp(name, "sparse", length) == 0) {
        for (int i = 0; i < r->n_layer; i++)
            smp_text_append(out, "%s%d", i > 0 ? ", " : "", is_sparse(r, i));
        return;
    }
    if (length == strlen("windows") && memcmp(name, "windows", length) == 0) {
        put_windows(r, out);
        return;
    }
    if (length == strlen("layer_window") && memcmp(name, "layer_window", length) == 0) {
        smp_text_append(out, "%s", r->slides ? ", window: \"windows[i]\"" : "");
        return;
    }
    for (int i = 0; r->family->key[i].name; i++) {
        const smp__config_key *key = &r->family->key[i];
        if (!key->as || strlen(key->as) != length || memcmp(key->as, name, length) != 0)
            continue;
        if (is_list(key) && !key->when)
            put_list(r, key, out);
        else
            put_phrase(r->number[i] == 0 && key->unless ? key->unless
                       : key->when                      ? key->when
                                                        : "#",
                       r->number[i], out);
    }
}

/* "[name]" and "[!name]" before a line, which then begins at *line: is it there? */
static bool stands(const reading *r, const char **line)
{
    bool all = true;
    while (**line == '[') {
        const char *name = *line + 1 + ((*line)[1] == '!'), *end = strchr(name, ']');
        const size_t length = (size_t)(end - name);
        bool is = r->train && length == strlen("train") && memcmp(name, "train", length) == 0;
        is |= r->long_rope.length > 0 && length == strlen("long_rope") &&
              memcmp(name, "long_rope", length) == 0;
        for (int i = 0; r->family->key[i].name; i++) {
            const char *as = r->family->key[i].as;
            if (as && strlen(as) == length && memcmp(as, name, length) == 0)
                is = r->number[i] != 0;
        }
        all = all && is != ((*line)[1] == '!');
        *line = end + 1;
    }
    return all;
}

static void put_text(const reading *r, smp_text *out)
{
    const char *at = r->family->text;
    while (*at) {
        const char *end = strchr(at, '\n') + 1;
        const bool is_there = stands(r, &at);
        for (; at < end && is_there; at++) {
            if (*at != '$') {
                smp_text_append_bytes(out, at, 1);
                continue;
            }
            const char *name = at + 1;
            size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyzT_");
            put_value(r, name, length, out);
            at = name + length - 1;
        }
        at = end;
    }
}

static void put_head(const reading *r, smp_text *out)
{
    smp_text_append(out,
                    "# %s of Hugging Face's transformers. Its weights: smp-run --weights FOLDER "
                    "--names %s\n",
                    r->family->class, r->family->names);
    for (const char *const *name = DROPOUT; *name; name++) {
        int index;
        const double p = key_of(r, *name, &index) ? r->number[index]
                                                  : json_number_value(given(r->config, *name));
        if (p > 0)
            smp_text_append(out, "# Left out: %s %.6g\n", *name, p);
    }
    smp_text_append(out, "smp: 1\nname: %s\n%s", r->family->type,
                    r->train ? "" : "mode: inference\n");
}

static smp_status fail_type(const reading *r, const char *type)
{
    char known[MOST_VALUE] = "";
    size_t n = 0;
    for (int i = 0; smp__folder_families[i] && n < sizeof(known); i++)
        n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", n > 0 ? ", " : "",
                              smp__folder_families[i]->type);
    return smp_fail(SMP_ERR_INPUT, "%s: model_type: got %.60s, expected one of %s", r->path, type,
                    known);
}

static smp_status read_config(reading *r, smp_text *out)
{
    const char *type = json_string_value(json_object_get(r->config, "model_type"));
    const json_t *of = json_object_get(r->config, "architectures");
    const char *class = json_string_value(json_array_get(of, 0));
    if (!type)
        return fail_type(r, "none");
    for (int i = 0; smp__folder_families[i]; i++)
        if (strcmp(smp__folder_families[i]->type, type) == 0)
            r->family = smp__folder_families[i];
    if (!r->family)
        return fail_type(r, type);
    if (class && strcmp(class, r->family->class) != 0)
        return fail_value(r, "architectures", of, r->family->class);
    SMP_TRY(read_keys(r));
    put_head(r, out);
    put_text(r, out);
    return out->failed ? smp_fail_memory(out->length) : SMP_OK;
}

smp_status smp__folder_config(const char *path, const char *folder, const char *data, size_t bytes,
                              bool train, smp_text *text, const char **names)
{
    json_error_t error;
    json_t *config = json_loadb(data, bytes, JSON_REJECT_DUPLICATES, &error);
    reading r = {.path = path, .folder = folder, .config = config, .train = train};
    smp_status status;
    if (!config && (json_error_code(&error) == json_error_out_of_memory || error.text[0] == '\0'))
        return smp_fail_memory(bytes);
    smp__json_hide(error.text);
    if (!config)
        return smp_fail_at((smp_where){path, error.line, error.column}, "%s", error.text);
    if (json_is_object(config))
        status = read_config(&r, text);
    else
        status = smp_fail(SMP_ERR_INPUT, "%s: expected an object", path);
    if (status == SMP_OK)
        *names = r.family->names;
    status = status == SMP_OK && (r.rope.failed || r.long_rope.failed || r.pad.failed)
                 ? smp_fail_memory(1)
                 : status;
    smp_text_free(&r.rope);
    smp_text_free(&r.long_rope);
    smp_text_free(&r.pad);
    json_decref(config);
    return status;
}

smp_status smp_folder_import(const char *path, bool train, smp_text *text, const char **names)
{
    smp_text where = {0};
    char *data = NULL;
    size_t bytes = 0;
    smp_text_append(&where, "%s/config.json", path);
    smp_status status =
        where.failed ? smp_fail_memory(1) : smp_file_read(where.data, MOST_CONFIG, &data, &bytes);
    if (status == SMP_OK)
        status = smp__folder_config(where.data, path, data, bytes, train, text, names);
    free(data);
    smp_text_free(&where);
    return status;
}
#else
smp_status smp__folder_config(const char *path, const char *folder, const char *data, size_t bytes,
                              bool train, smp_text *text, const char **names)
{
    (void)folder, (void)data, (void)bytes;
    return smp_folder_import(path, train, text, names);
}

smp_status smp_folder_import(const char *path, bool train, smp_text *text, const char **names)
{
    (void)train, (void)text, (void)names;
    return smp_fail(SMP_ERR_INPUT,
                    "%s: this build reads no config.json: it was made without Jansson "
                    "(libjansson-dev)",
                    path);
}
#endif
