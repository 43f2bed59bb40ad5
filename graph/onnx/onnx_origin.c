/* Where PyTorch's exporter says that a node comes from: it notes beside each node the operator of
 * the graph of torch.export, with the parameters that it read, and the module that called it. It
 * also merges initializers of equal values and leaves out biases of zeroes, which these notes
 * undo. */
#define _GNU_SOURCE /* memmem */
#include "graph/onnx/onnx_model.h"

#include <ctype.h>
#include <string.h>

enum {
    METADATA = 9, /* field of NodeProto since ONNX 1.16, which older schemas lack */
    KEY = 1,
    VALUE = 2
};

/* Not NULL: it is counted on from. */
#define NOTHING ((smp__onnx_note){"", 0})

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
        smp__onnx_note entry, part[VALUE + 1] = {NOTHING, NOTHING, NOTHING};
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
    return NOTHING;
}

/* Behind the first of these words from `at` on, or NULL. */
static const char *behind(const char *at, const char *end, const char *words)
{
    const char *found = at ? memmem(at, (size_t)(end - at), words, strlen(words)) : NULL;
    return found ? found + strlen(words) : NULL;
}

/* What is read, "%p_h_0_ln_1_weight", behind `at`: without the sign, or no text. */
static smp__onnx_note parameter(const char **at, const char *end)
{
    const char *rest = behind(*at, end, "%p_");
    if (!rest)
        return (smp__onnx_note){0};
    const char *begin = rest - strlen("p_");
    while (rest < end && (isalnum((unsigned char)*rest) || *rest == '_'))
        rest++;
    *at = rest;
    return (smp__onnx_note){begin, (size_t)(rest - begin)};
}

/* The arguments of the operator that a node was made of. */
static bool arguments(const smp_onnx_node *node, const char **at, const char **end)
{
    const smp__onnx_note note = smp__onnx_noted(node, "pkg.torch.onnx.fx_node");
    *end = note.text + note.length;
    *at = behind(note.text, *end, "(args = ");
    return *at != NULL;
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

bool smp__onnx_reads_buffer(const smp_onnx_node *node)
{
    const char *at, *end;
    return arguments(node, &at, &end) && behind(at, end, "%b_") && !behind(at, end, "%p_");
}

bool smp__onnx_share_parameter(const smp_onnx_node *a, const smp_onnx_node *b)
{
    const char *at, *end, *other, *other_end;
    if (!arguments(a, &at, &end))
        return false;
    for (smp__onnx_note x; (x = parameter(&at, end)).text;) {
        if (!arguments(b, &other, &other_end))
            return false;
        for (smp__onnx_note y; (y = parameter(&other, other_end)).text;)
            if (x.length == y.length && memcmp(x.text, y.text, x.length) == 0)
                return true;
    }
    return false;
}

bool smp__onnx_batchnorm_folded(const smp_onnx_node *node)
{
    const smp__onnx_note note = smp__onnx_noted(node, "pkg.onnxscript.rewriter.rule_name");
    return behind(note.text, note.text + note.length, "FuseBatchNorm") != NULL;
}

int64_t smp__onnx_padding_row(const smp_onnx_node *node)
{
    /* %embedding : .. aten.embedding.default](args = (%p_wte_weight, %x, 0), kwargs = {}) */
    const smp__onnx_note note = smp__onnx_noted(node, "pkg.torch.onnx.fx_node");
    const char *const end = note.text + note.length;
    const char *c = behind(note.text, end, "aten.embedding.default](args = (");
    int64_t row = -1;
    for (int commas = 0; c && c < end && *c != ')'; c++) {
        commas += *c == ',';
        if (commas == 2 && *c == '-')
            return -1;
        if (commas == 2 && isdigit((unsigned char)*c) && row < INT32_MAX)
            row = (row < 0 ? 0 : row * 10) + (*c - '0');
    }
    return row;
}

smp__onnx_note smp__onnx_module(const smp_onnx_node *node)
{
    /* ['', 'h', 'h.0', 'h.0.ln_1', 'layer_norm'] */
    const smp__onnx_note note = smp__onnx_noted(node, "pkg.torch.onnx.name_scopes");
    smp__onnx_note last = {0}, before = {0};
    const char *end = note.text + note.length, *open = NULL;
    for (const char *c = note.text; c < end; c++) {
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
