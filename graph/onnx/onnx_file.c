/* Reading an ONNX file. protobuf-c recurses without a bound, merges what is there twice and says no
 * more than "failed", so the wire format is walked first, along the schema's descriptors: every
 * message, its place and its depth. What protobuf-c then allocates is counted. */
#include "graph/onnx/onnx_file.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "graph/base/text.h"

enum {
    MOST_DEPTH = 64,                 /* of messages: graphs within nodes within graphs */
    MOST_FILE = INT32_MAX,           /* bytes: protobuf's own limit */
    MOST_OVERHEAD = 64 << 20,        /* bytes of the model beyond twice those of its file */
    COST_OF_ONE = 2 * sizeof(size_t) /* of one allocation, beside its bytes */
};

typedef struct walk {
    const char *path;
    const uint8_t *data;
    int64_t *node_at; /* NULL: nodes are counted alone */
    size_t n_node;
} walk;

static smp_status broken(const walk *w, size_t at, const char *what)
{
    return smp_fail(SMP_ERR_INPUT, "%s: byte %zu: %s", w->path, at, what);
}

/* False: no number of at most 64 bits within [*at, end). */
static bool read_varint(const uint8_t *data, size_t *at, size_t end, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        const uint8_t byte = data[(*at)++];
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return true;
    }
    return false;
}

static smp_status walk_message(walk *w, const ProtobufCMessageDescriptor *type, size_t at,
                               size_t end, int depth);

/* The `length` bytes of a field at `at`. */
static smp_status walk_bytes(walk *w, const ProtobufCMessageDescriptor *type,
                             const ProtobufCFieldDescriptor *field, size_t at, size_t length,
                             int depth)
{
    if (!field || field->type != PROTOBUF_C_TYPE_MESSAGE)
        return SMP_OK;
    if (type == &onnx__graph_proto__descriptor && depth == 1 && strcmp(field->name, "node") == 0) {
        if (w->node_at)
            w->node_at[w->n_node] = (int64_t)at;
        w->n_node++;
    }
    return walk_message(w, field->descriptor, at, at + length, depth + 1);
}

/* Behind the tag: *at becomes the end of the field. */
static smp_status walk_field(walk *w, const ProtobufCMessageDescriptor *type, uint64_t tag,
                             size_t *at, size_t end, int depth)
{
    const ProtobufCFieldDescriptor *field =
        tag >> 3 <= UINT32_MAX ? protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3))
                               : NULL;
    uint64_t value;
    const size_t begin = *at;
    switch (tag & 7) {
    case PROTOBUF_C_WIRE_TYPE_VARINT:
        return read_varint(w->data, at, end, &value) ? SMP_OK
                                                     : broken(w, begin, "a number is cut off");
    case PROTOBUF_C_WIRE_TYPE_64BIT:
    case PROTOBUF_C_WIRE_TYPE_32BIT:
        *at += (tag & 7) == PROTOBUF_C_WIRE_TYPE_64BIT ? 8 : 4;
        return *at <= end ? SMP_OK : broken(w, begin, "a number is cut off");
    case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
        if (!read_varint(w->data, at, end, &value))
            return broken(w, begin, "a length is cut off");
        if (value > end - *at)
            return smp_fail(SMP_ERR_INPUT,
                            "%s: byte %zu: a field of %s has %llu bytes, the message %zu more",
                            w->path, begin, type->name, (unsigned long long)value, end - *at);
        SMP_TRY(walk_bytes(w, type, field, *at, (size_t)value, depth));
        *at += (size_t)value;
        return SMP_OK;
    default:
        return broken(w, begin, "a field of a type that ONNX does not have");
    }
}

static smp_status walk_message(walk *w, const ProtobufCMessageDescriptor *type, size_t at,
                               size_t end, int depth)
{
    if (depth > MOST_DEPTH)
        return smp_fail(SMP_ERR_INPUT, "%s: byte %zu: nested deeper than %d messages", w->path, at,
                        MOST_DEPTH);
    uint64_t seen = 0;
    while (at < end) {
        const size_t begin = at;
        uint64_t tag;
        if (!read_varint(w->data, &at, end, &tag) || tag >> 3 == 0)
            return broken(w, begin, "no field of a protobuf message: not an ONNX file?");
        const ProtobufCFieldDescriptor *field =
            tag >> 3 <= UINT32_MAX
                ? protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3))
                : NULL;
        if (field && field->label != PROTOBUF_C_LABEL_REPEATED) {
            const uint64_t bit = (uint64_t)1 << (size_t)(field - type->fields);
            if (seen & bit)
                return smp_fail(SMP_ERR_INPUT, "%s: byte %zu: %s of %s is there twice", w->path,
                                begin, field->name, type->name);
            seen |= bit;
        }
        SMP_TRY(walk_field(w, type, tag, &at, end, depth));
    }
    return SMP_OK;
}

static void *take_memory(void *context, size_t bytes)
{
    smp_onnx_file *file = context;
    const size_t cost = bytes + COST_OF_ONE;
    if (bytes > file->bytes_limit || cost > file->bytes_limit - file->bytes_taken)
        return NULL;
    void *memory = malloc(bytes ? bytes : 1);
    if (memory)
        file->bytes_taken += cost;
    return memory;
}

/* What is given back is not known by its size; protobuf-c does so only where it fails. */
static void give_back(void *context, void *memory)
{
    (void)context;
    free(memory);
}

static smp_status unpack(smp_onnx_file *file, const uint8_t *data, size_t bytes)
{
    ProtobufCAllocator allocator = {take_memory, give_back, file};
    file->bytes_limit = 2 * bytes + MOST_OVERHEAD;
    file->model = onnx__model_proto__unpack(&allocator, bytes, data);
    if (file->model)
        return SMP_OK;
    if (file->bytes_limit - file->bytes_taken < (file->bytes_limit >> 4))
        return smp_fail(SMP_ERR_INPUT, "%s: takes more than %zu bytes of memory, the file has %zu",
                        file->path, file->bytes_limit, bytes);
    return smp_fail(SMP_ERR_INPUT, "%s: byte 0: protobuf-c cannot read it as an ONNX model",
                    file->path);
}

smp_status smp_onnx_file_parse(const char *path, const uint8_t *data, size_t bytes,
                               smp_onnx_file **out)
{
    walk w = {path, data, NULL, 0};
    SMP_TRY(walk_message(&w, &onnx__model_proto__descriptor, 0, bytes, 0));
    smp_onnx_file *file = calloc(1, sizeof(*file));
    if (!file)
        return smp_fail_memory(sizeof(*file));
    file->bytes = bytes;
    file->path = strdup(path);
    file->node_at = w.node_at = malloc((w.n_node + 1) * sizeof(*w.node_at));
    smp_status status = SMP_OK;
    w.n_node = 0;
    if (!file->path || !file->node_at)
        status = smp_fail_memory(sizeof(*w.node_at));
    if (status == SMP_OK)
        status = walk_message(&w, &onnx__model_proto__descriptor, 0, bytes, 0);
    if (status == SMP_OK)
        status = unpack(file, data, bytes);
    if (status == SMP_OK && !file->model->graph)
        status = smp_fail(SMP_ERR_INPUT, "%s: no graph in it: not an ONNX model?", path);
    if (status == SMP_OK)
        *out = file;
    else
        smp_onnx_file_close(file);
    return status;
}

/* Mapped, so that the file's bytes are in memory once beside the unpacked ones. */
smp_status smp_onnx_file_open(const char *path, smp_onnx_file **out)
{
    int fd;
    int64_t bytes;
    SMP_TRY(smp_file_open(path, &fd, &bytes));
    smp_status status = SMP_OK;
    void *data = MAP_FAILED;
    if (bytes == 0 || bytes > MOST_FILE)
        status = smp_fail(SMP_ERR_INPUT, "%s: has %lld bytes, expected 1 to %d", path,
                          (long long)bytes, MOST_FILE);
    else if ((data = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED)
        status = smp_fail(SMP_ERR_INPUT, "%s: cannot read: %m", path);
    close(fd);
    if (status == SMP_OK) {
        status = smp_onnx_file_parse(path, data, (size_t)bytes, out);
        munmap(data, (size_t)bytes);
    }
    return status;
}

void smp_onnx_file_close(smp_onnx_file *file)
{
    if (!file)
        return;
    ProtobufCAllocator allocator = {take_memory, give_back, file};
    if (file->model)
        onnx__model_proto__free_unpacked(file->model, &allocator);
    free(file->node_at);
    free((char *)file->path);
    free(file);
}
