/* GPT-2's weights as llm.c writes them (github.com/karpathy/llm.c, train_gpt2.py, write_model): 256
 * int32 of head, then sixteen arrays, of all layers together, in fp32 (version 3) or bf16 (5).
 * They are listed by layer, under the names of examples/gpt2-124m.yaml; the table of tokens has as
 * many rows as it was padded to. */
#include "graph/safetensors/weights_format.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAGIC = 20240326, HEAD = 256, MOST = 1 << 20, MOST_LAYERS = 10000 };
enum { AT_MAGIC, AT_VERSION, AT_POSITIONS, AT_VOCAB, AT_LAYERS, AT_HEADS, AT_CHANNELS, AT_PADDED };

/* An array: rows and columns in channels, or other sizes. */
enum { NONE = 0, VOCAB = -1, POSITIONS = -2 };
static const struct array {
    const char *name;
    bool layers;
    int rows, columns;
} arrays[] = {
    {"wte.weight", false, VOCAB, 1},  {"wpe.weight", false, POSITIONS, 1},
    {"ln_1.weight", true, 1, NONE},   {"ln_1.bias", true, 1, NONE},
    {"attn.qkv.weight", true, 3, 1},  {"attn.qkv.bias", true, 3, NONE},
    {"attn.proj.weight", true, 1, 1}, {"attn.proj.bias", true, 1, NONE},
    {"ln_2.weight", true, 1, NONE},   {"ln_2.bias", true, 1, NONE},
    {"mlp.fc.weight", true, 4, 1},    {"mlp.fc.bias", true, 4, NONE},
    {"mlp.proj.weight", true, 1, 4},  {"mlp.proj.bias", true, 1, NONE},
    {"ln_f.weight", false, 1, NONE},  {"ln_f.bias", false, 1, NONE},
};

static bool knows(const char *path, const unsigned char *first, size_t n)
{
    int32_t magic;
    (void)path;
    memcpy(&magic, first, sizeof magic);
    return n >= sizeof magic && magic == MAGIC;
}

static smp_status check_head(const smp_weights_file *file, const int32_t *head)
{
    if (head[AT_VERSION] != 3 && head[AT_VERSION] != 5)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: byte 4: llm.c's version %" PRId32 ", expected 3 (fp32) or 5 (bf16)",
                        file->path, head[AT_VERSION]);
    for (int i = AT_POSITIONS; i <= AT_PADDED; i++)
        if (head[i] < 1 || head[i] > MOST)
            return smp_fail(SMP_ERR_INPUT,
                            "%s: byte %d: got a size of %" PRId32 ", expected 1 to %d", file->path,
                            4 * i, head[i], MOST);
    if (head[AT_LAYERS] > MOST_LAYERS)
        return smp_fail(SMP_ERR_INPUT, "%s: byte %d: got %" PRId32 " layers, expected at most %d",
                        file->path, 4 * AT_LAYERS, head[AT_LAYERS], MOST_LAYERS);
    return SMP_OK;
}

static int64_t size_of(const int32_t *head, int size)
{
    return size == VOCAB       ? head[AT_PADDED]
           : size == POSITIONS ? head[AT_POSITIONS]
                               : (int64_t)size * head[AT_CHANNELS];
}

/* All that array `a` has; *at moves after it. */
static smp_status add_array(smp_weights_file *file, const int32_t *head, const struct array *a,
                            int64_t *at)
{
    char name[64];
    smp_stored_tensor t = {.name = name,
                           .dtype = head[AT_VERSION] == 3 ? &smp_stored_f32 : &smp_stored_bf16};
    t.shape.n_dim = a->columns == NONE ? 1 : 2;
    t.shape.dim[0] = size_of(head, a->rows);
    t.shape.dim[1] = size_of(head, a->columns);
    smp_stored_elements(&t.shape, &t.elements);
    for (int32_t layer = 0; layer < (a->layers ? head[AT_LAYERS] : 1); layer++) {
        snprintf(name, sizeof name, "h%" PRId32 ".%s", layer, a->name);
        if (!a->layers)
            snprintf(name, sizeof name, "%s", a->name);
        t.at = *at;
        *at += t.elements * t.dtype->bytes;
        SMP_TRY(smp__weights_add_tensor(file, &t));
    }
    return SMP_OK;
}

/* Bytes that a file of this head has, which may be more than 2^63: hence no integer. */
static double expected_bytes(const int32_t *head)
{
    const double c = head[AT_CHANNELS], size = head[AT_VERSION] == 3 ? 4.0 : 2.0;
    const double tables = ((double)head[AT_PADDED] + head[AT_POSITIONS] + 2.0) * c;
    return 4.0 * HEAD + size * (tables + head[AT_LAYERS] * (12.0 * c * c + 13.0 * c));
}

static smp_status add_all(smp_weights_file *file, const int32_t *head, int64_t length)
{
    int64_t at = 4 * HEAD;
    SMP_TRY(check_head(file, head));
    if (expected_bytes(head) != (double)length)
        return smp_fail(SMP_ERR_INPUT, "%s: has %" PRId64 " bytes, its head says %.0f", file->path,
                        length, expected_bytes(head));
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        SMP_TRY(add_array(file, head, &arrays[i], &at));
    return at == length
               ? SMP_OK
               : smp_fail(SMP_ERR_INPUT, "%s: has %" PRId64 " bytes, its head says %" PRId64,
                          file->path, length, at);
}

static smp_status read_file(smp_weights_file *file)
{
    int32_t head[HEAD], number;
    int64_t length;
    int fd;
    SMP_TRY(smp__weights_add_file(file, file->path, &number));
    SMP_TRY(smp_file_open(file->path, &fd, &length));
    smp_status status = smp__weights_pread(fd, file->path, head, sizeof head, 0);
    close(fd);
    return status == SMP_OK ? add_all(file, head, length) : status;
}

const smp__weights_format smp__format_llmc = {knows, read_file};
