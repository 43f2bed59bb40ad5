/* Where PyTorch's exporter says that a node comes from: it notes beside each node the operator of
 * the graph of torch.export, with the parameters that it read, and the module that called it. It
 * also merges initializers of equal values and leaves out biases of zeroes, which these notes
 * undo. */
#include "graph/onnx/onnx_model.h"

#include <ctype.h>
#include <string.h>

enum {
    METADATA = 9, /* field of NodeProto since ONNX 1.16, which older schemas lack */
    KEY = 1,
    VALUE = 2
};

/* A number of seven bits a byte; false: it is cut off, or of more than 63 bits. */
static bool varint(const uint8_t **at, const uint8_t *end, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; *at < end && shift < 63; shift += 7) {
        const uint8_t byte = *(*at)++;
        *out |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return true;
    }
    return false;
}

/* The bytes behind their length. */
static bool text(const uint8_t **at, const uint8_t *end, smp__onnx_note *out)
{
    uint64_t length;
    if (!varint(at, end, &length) || length > (uint64_t)(end - *at))
        return false;
    *out = (smp__onnx_note){(const char *)*at, (size_t)length};
    *at += length;
    return true;
}

static bool is(const smp__onnx_note *note, const char *words)
{
    return note->length == strlen(words) && memcmp(note->text, words, note->length) == 0;
}

smp__onnx_note smp__onnx_noted(const smp_onnx_node *node, const char *key)
{
    const ProtobufCMessage *message = &node->proto->base;
    for (unsigned i = 0; i < message->n_unknown_fields; i++) {
        const ProtobufCMessageUnknownField *field = &message->unknown_fields[i];
        if (field->tag != METADATA || field->wire_type != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED)
            continue;
        const uint8_t *at = field->data, *end = field->data + field->len;
        smp__onnx_note entry, part[VALUE + 1] = {{0}};
        if (!text(&at, end, &entry))
            continue;
        at = (const uint8_t *)entry.text;
        end = at + entry.length;
        for (uint64_t tag; at < end && varint(&at, end, &tag);) {
            smp__onnx_note found;
            if ((tag & 7) != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED || !text(&at, end, &found))
                break;
            if (tag >> 3 == KEY || tag >> 3 == VALUE)
                part[tag >> 3] = found;
        }
        if (is(&part[KEY], key))
            return part[VALUE];
    }
    return (smp__onnx_note){0};
}

/* What is read, "%p_h_0_ln_1_weight", behind `at`: without the sign, or no text. */
static smp__onnx_note parameter(const char **at, const char *end)
{
    static const char SIGN[] = "%p_";
    for (const char *c = *at; c + strlen(SIGN) < end; c++) {
        if (memcmp(c, SIGN, strlen(SIGN)) != 0)
            continue;
        const char *begin = ++c;
        while (c < end && (isalnum((unsigned char)*c) || *c == '_'))
            c++;
        *at = c;
        return (smp__onnx_note){begin, (size_t)(c - begin)};
    }
    return (smp__onnx_note){0};
}

/* The arguments of the operator that a node was made of. */
static bool arguments(const smp_onnx_node *node, const char **at, const char **end)
{
    static const char SIGN[] = "(args = ";
    const smp__onnx_note note = smp__onnx_noted(node, "pkg.torch.onnx.fx_node");
    *end = note.text + note.length;
    for (*at = note.text; *at && *at + strlen(SIGN) < *end; ++*at)
        if (memcmp(*at, SIGN, strlen(SIGN)) == 0)
            return true;
    return false;
}

int smp__onnx_parameters(const smp_onnx_node *node)
{
    const char *at, *end;
    if (!arguments(node, &at, &end))
        return -1;
    int n = 0;
    while (parameter(&at, end).text)
        n++;
    return n;
}

/* "h.0.ln_1.weight" is p_h_0_ln_1_weight there. */
static bool names(const smp__onnx_note *placeholder, const char *initializer)
{
    size_t i = 2;
    for (; *initializer && i < placeholder->length; i++, initializer++) {
        const unsigned char c = (unsigned char)*initializer;
        if (placeholder->text[i] != (isalnum(c) ? tolower(c) : '_') &&
            placeholder->text[i] != (char)c)
            return false;
    }
    return !*initializer && i == placeholder->length;
}

bool smp__onnx_reads_another(const smp_onnx_node *node, const char *initializer)
{
    const char *at, *end;
    if (!arguments(node, &at, &end))
        return false;
    bool any = false;
    for (smp__onnx_note found; (found = parameter(&at, end)).text; any = true)
        if (names(&found, initializer))
            return false;
    return any;
}

int64_t smp__onnx_padding_row(const smp_onnx_node *node)
{
    /* %embedding : .. aten.embedding.default](args = (%p_wte_weight, %x, 0), kwargs = {}) */
    static const char OPERATOR[] = "aten.embedding.default](args = (";
    const smp__onnx_note note = smp__onnx_noted(node, "pkg.torch.onnx.fx_node");
    const char *const end = note.text + note.length;
    for (const char *c = note.text; c && c + strlen(OPERATOR) < end; c++) {
        if (memcmp(c, OPERATOR, strlen(OPERATOR)) != 0)
            continue;
        int commas = 0;
        int64_t row = -1;
        for (c += strlen(OPERATOR); c < end && *c != ')'; c++) {
            commas += *c == ',';
            if (commas == 2 && isdigit((unsigned char)*c) && row < INT32_MAX)
                row = (row < 0 ? 0 : row * 10) + (*c - '0');
            else if (commas == 2 && *c == '-')
                return -1;
        }
        return row;
    }
    return -1;
}

smp__onnx_note smp__onnx_module(const smp_onnx_node *node)
{
    /* ['', 'h', 'h.0', 'h.0.ln_1', 'layer_norm'] */
    const smp__onnx_note note = smp__onnx_noted(node, "pkg.torch.onnx.name_scopes");
    smp__onnx_note last = {0}, before = {0};
    const char *end = note.text + note.length, *open = NULL;
    for (const char *c = note.text; c && c < end; c++) {
        if (*c != '\'')
            continue;
        if (open) {
            before = last;
            last = (smp__onnx_note){open, (size_t)(c - open)};
        }
        open = open ? NULL : c + 1;
    }
    return before;
}
