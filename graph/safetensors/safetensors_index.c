/* An index of several safetensors files in the form of Hugging Face's: an object whose `weight_map`
 * says for every tensor in which file it is. The files lie beside the index. */
#include "graph/safetensors/weights_format.h"

#include <stdlib.h>
#include <string.h>

#ifdef SMP_HAVE_JANSSON
#include <jansson.h>

enum { MOST_INDEX = 16 << 20, MOST_FILES = 100000 };

/* A name without a folder: an index names nothing that lies elsewhere. */
static bool is_plain(const char *name)
{
    return name[0] != '\0' && !strchr(name, '/') && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

/* Adds and reads a file that the index names for the first time. */
static smp_status read_shard(smp_weights_file *file, smp_map *shards, const char *name)
{
    int64_t known;
    int32_t number;
    if (smp_map_get(shards, name, &known))
        return SMP_OK;
    if (!is_plain(name))
        return smp_fail(SMP_ERR_INPUT,
                        "%s: weight_map: got the file '%s', expected the name of "
                        "one beside it",
                        file->path, name);
    if (file->n_file == MOST_FILES)
        return smp_fail(SMP_ERR_INPUT, "%s: weight_map: more than %d files", file->path,
                        MOST_FILES);
    const char *slash = strrchr(file->path, '/');
    const char *path = smp_arena_printf(
        file->arena, "%.*s%s", slash ? (int)(slash - file->path) + 1 : 0, file->path, name);
    if (!path)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__weights_add_file(file, path, &number));
    SMP_TRY(smp_map_set(shards, name, number));
    return smp__safetensors_read(file, number);
}

static smp_status check_place(const smp_weights_file *file, const smp_map *shards, const char *name,
                              const char *shard)
{
    const int32_t tensor = smp_weights_file_find(file, name);
    int64_t number = -1;
    smp_map_get(shards, shard, &number);
    if (tensor >= 0 && file->tensor[tensor].file == number)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT, "%s: weight_map: tensor '%s' is not in %s", file->path, name,
                    shard);
}

static smp_status read_map(smp_weights_file *file, json_t *map, smp_map *shards)
{
    const char *name;
    json_t *shard;
    json_object_foreach(map, name, shard)
    {
        if (!json_is_string(shard))
            return smp_fail(SMP_ERR_INPUT, "%s: weight_map: '%s': expected the name of a file",
                            file->path, name);
        SMP_TRY(read_shard(file, shards, json_string_value(shard)));
    }
    json_object_foreach(map, name, shard)
        SMP_TRY(check_place(file, shards, name, json_string_value(shard)));
    return SMP_OK;
}

static smp_status read_json(smp_weights_file *file, const char *text, size_t bytes)
{
    json_error_t error;
    json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!json && (json_error_code(&error) == json_error_out_of_memory || error.text[0] == '\0'))
        return smp_fail_memory(bytes);
    smp__json_hide(error.text);
    if (!json)
        return smp_fail_at((smp_where){file->path, error.line, error.column}, "%s", error.text);
    json_t *map = json_object_get(json, "weight_map");
    smp_map *shards = smp_map_create();
    smp_status status = SMP_OK;
    if (!shards)
        status = smp_fail_memory(1);
    else if (!json_is_object(map))
        status = smp_fail(SMP_ERR_INPUT,
                          "%s: expected an object with `weight_map`, the files of "
                          "all tensors",
                          file->path);
    else
        status = read_map(file, map, shards);
    smp_map_destroy(shards);
    json_decref(json);
    return status;
}
#else
static smp_status read_json(smp_weights_file *file, const char *text, size_t bytes)
{
    (void)text, (void)bytes;
    return smp_fail(SMP_ERR_INPUT,
                    "%s: this build reads no safetensors: it was made without "
                    "Jansson (libjansson-dev)",
                    file->path);
}
enum { MOST_INDEX = 16 << 20 };
#endif

static bool knows(const char *path, const unsigned char *first, size_t n)
{
    const size_t length = strlen(path);
    (void)first, (void)n;
    return length >= 5 && strcmp(path + length - 5, ".json") == 0;
}

static smp_status read_index(smp_weights_file *file)
{
    char *text = NULL;
    size_t bytes = 0;
    SMP_TRY(smp_file_read(file->path, MOST_INDEX, &text, &bytes));
    const smp_status status = read_json(file, text, bytes);
    free(text);
    return status;
}

const smp__weights_format smp__format_index = {knows, read_index};
