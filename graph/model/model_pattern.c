/* Names with expressions in braces: "h{i}.ln_1", "x{i + 1}". Split once when the file is read,
 * expanded for every op; O(length). */
#include <stdio.h>
#include <string.h>

#include "graph/model/model.h"

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-' || c == '/' || c == ':' || c == '[' || c == ']';
}

static smp_status fail_char(const char *what, const char *name, char c, smp_where where)
{
    char got[8];
    snprintf(got, sizeof got, c > ' ' && c < 0x7f ? "'%c'" : "0x%02x", (unsigned char)c);
    return smp_fail_at(where, "%s '%.60s': got %s, expected letters, digits and . _ - / : [ ] only",
                       what, name, c == ' ' ? "a blank" : got);
}

smp_status smp__name_check(const char *name, const char *what, smp_where where)
{
    size_t length = strlen(name);
    if (length == 0)
        return smp_fail_at(where, "%s: got an empty name", what);
    if (length > SMP_MAX_NAME)
        return smp_fail_at(where, "%s '%.60s...': got %zu characters, expected at most %d", what,
                           name, length, (int)SMP_MAX_NAME);
    for (size_t i = 0; i < length; i++) {
        if (!is_name_char(name[i]))
            return fail_char(what, name, name[i], where);
    }
    return SMP_OK;
}

/* Upper bound of the number of pieces: each brace ends one and starts one. */
static size_t count_pieces(const char *source)
{
    size_t braces = 0;
    for (const char *c = source; *c; c++)
        braces += *c == '{' || *c == '}';
    return braces == 0 ? 0 : braces + 1;
}

static smp_status fail_brace(const smp__pattern *p, const char *at, const char *what)
{
    smp_where where = p->where;
    where.column += (int)(at - p->source);
    return smp_fail_at(where, "%s '%.60s': got '%c' without its partner, expected {expression}",
                       what, p->source, *at);
}

static smp_status split(smp__model *m, smp__pattern *p, smp__piece *piece, const char *what)
{
    const char *c = p->source;
    while (*c) {
        bool is_expression = *c == '{';
        const char *start = c + is_expression;
        const char *end = start + strcspn(start, "{}");
        if (is_expression ? *end != '}' : *end == '}')
            return fail_brace(p, is_expression ? c : end, what);
        size_t length = (size_t)(end - start);
        char *text = smp_arena_alloc_aligned(m->scratch, length + 1, 1, 1);
        if (!text)
            return SMP_ERR_NO_MEMORY;
        memcpy(text, start, length);
        piece[p->n_piece++] =
            (smp__piece){text, (int32_t)length, (int32_t)(start - p->source), is_expression};
        c = end + is_expression;
    }
    return SMP_OK;
}

smp_status smp__pattern_compile(smp__model *m, const smp_yaml_node *node, const char *what,
                                smp__charset charset, smp__pattern *out)
{
    smp__pattern p = {0};
    SMP_TRY(smp_yaml_string(node, what, &p.source));
    p.where = smp_yaml_where(node);
    if (strlen(p.source) > SMP__MAX_EXPANDED)
        return smp_fail_at(p.where, "%s '%.60s...': got %zu characters, expected at most %d", what,
                           p.source, strlen(p.source), (int)SMP_MAX_NAME);
    p.where.column += smp_yaml_quoted(node);
    size_t pieces = count_pieces(p.source);
    if (pieces == 0) {
        if (charset == SMP__NAME_TEXT)
            SMP_TRY(smp__name_check(p.source, what, p.where));
        *out = p;
        return SMP_OK;
    }
    smp__piece *piece = smp_arena_alloc_aligned(m->scratch, pieces, sizeof *piece, 8);
    if (!piece)
        return SMP_ERR_NO_MEMORY;
    p.piece = piece;
    SMP_TRY(split(m, &p, piece, what));
    for (int32_t i = 0; i < p.n_piece && charset == SMP__NAME_TEXT; i++) {
        if (piece[i].is_expression)
            continue;
        for (int32_t j = 0; j < piece[i].length; j++) {
            if (!is_name_char(piece[i].text[j]))
                return fail_char(what, p.source, piece[i].text[j], p.where);
        }
    }
    *out = p;
    return SMP_OK;
}

/* Decimal digits of `value` at `out`, which has room for 20; returns how many. */
static size_t format_int(char *out, int64_t value)
{
    char digits[20];
    size_t n = 0;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do
        digits[n++] = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    size_t sign = value < 0;
    if (sign)
        out[0] = '-';
    for (size_t i = 0; i < n; i++)
        out[sign + i] = digits[n - 1 - i];
    return n + sign;
}

smp_status smp__pattern_expand(smp__model *m, const smp__pattern *pattern, size_t max,
                               const char **out)
{
    if (pattern->n_piece == 0) {
        *out = pattern->source;
        return SMP_OK;
    }
    size_t used = 0;
    for (int32_t i = 0; i < pattern->n_piece; i++) {
        const smp__piece *piece = &pattern->piece[i];
        char digits[20];
        const char *text = piece->text;
        size_t length = (size_t)piece->length;
        if (piece->is_expression) {
            smp_where where = pattern->where;
            where.column += piece->offset;
            int64_t value;
            SMP_TRY(smp__model_eval_text(m, piece->text, where, &value));
            length = format_int(digits, value);
            text = digits;
        }
        if (length > max - used)
            return smp_fail_at(pattern->where, "'%.60s': longer than %zu characters once expanded",
                               pattern->source, max);
        memcpy(m->buffer + used, text, length);
        used += length;
    }
    m->buffer[used] = '\0';
    *out = m->buffer;
    return SMP_OK;
}
