/* Recursive descent over
 *     whole   = sum [ ("==" | "!=" | "<" | "<=" | ">" | ">=") sum ]
 *     sum     = product { ("+" | "-") product }
 *     product = factor { ("*" | "/") factor }
 *     factor  = "-" factor | "(" whole ")" | number | name [ "[" whole "]" ]
 * evaluating as it reads: O(length), stack bounded by the depth limit. */
#include "graph/model/expr.h"

#include <stdio.h>

enum { MAX_DEPTH = 64, SHOWN_BYTES = 60 };

typedef struct reader {
    const char *text;
    const char *at;
    smp_where where; /* of text */
    smp_expr_lookup lookup;
    void *context;
    int depth;
} reader;

static smp_where place(const reader *r, const char *at)
{
    smp_where where = r->where;
    if (where.column > 0)
        where.column += (int)(at - r->text);
    return where;
}

static void skip_blanks(reader *r)
{
    while (*r->at == ' ' || *r->at == '\t')
        r->at++;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}

/* Names what stands at r->at. */
static smp_status fail_syntax(const reader *r, const char *expected)
{
    char got[16] = "the end";
    if (*r->at)
        snprintf(got, sizeof got, "'%c'", *r->at > ' ' && *r->at < 0x7f ? *r->at : '?');
    return smp_fail_at(place(r, r->at), "expression '%.*s': got %s, expected %s", (int)SHOWN_BYTES,
                       r->text, got, expected);
}

static smp_status fail_overflow(const reader *r, const char *at)
{
    return smp_fail_at(place(r, at), "expression '%.*s': the result does not fit into 64 bits",
                       (int)SHOWN_BYTES, r->text);
}

static smp_status whole(reader *r, int64_t *out);
static smp_status factor(reader *r, int64_t *out);

static smp_status number(reader *r, int64_t *out)
{
    const char *start = r->at;
    int64_t value = 0;
    for (; is_digit(*r->at); r->at++) {
        if (__builtin_mul_overflow(value, (int64_t)10, &value) ||
            __builtin_add_overflow(value, (int64_t)(*r->at - '0'), &value))
            return fail_overflow(r, start);
    }
    if (is_name(*r->at) || *r->at == '.')
        return fail_syntax(r, "a decimal integer");
    *out = value;
    return SMP_OK;
}

/* What stands after the sign at r->at: a factor after "-", else all up to the bracket. */
static smp_status nested(reader *r, int64_t *out)
{
    if (r->depth == MAX_DEPTH)
        return smp_fail_at(place(r, r->at), "expression '%.*s': nested deeper than %d levels",
                           (int)SHOWN_BYTES, r->text, (int)MAX_DEPTH);
    r->depth++;
    char sign = *r->at++;
    if (sign == '-') {
        SMP_TRY(factor(r, out));
    } else {
        SMP_TRY(whole(r, out));
        if (*r->at != (sign == '(' ? ')' : ']'))
            return fail_syntax(r, sign == '(' ? "')' or an operator" : "']' or an operator");
        r->at++;
    }
    r->depth--;
    return SMP_OK;
}

static smp_status name(reader *r, int64_t *out)
{
    const char *start = r->at;
    while (is_name(*r->at))
        r->at++;
    size_t length = (size_t)(r->at - start);
    int shown = (int)(length < SHOWN_BYTES ? length : SHOWN_BYTES);
    smp_expr_name found;
    int64_t index = 0;
    if (!r->lookup || !r->lookup(r->context, start, length, &found))
        return smp_fail_at(place(r, start), "expression '%.*s': unknown name '%.*s'",
                           (int)SHOWN_BYTES, r->text, shown, start);
    skip_blanks(r);
    const char *bracket = r->at;
    if (*bracket == '[' && found.count == 0)
        return smp_fail_at(place(r, bracket), "expression '%.*s': '%.*s' is not a list",
                           (int)SHOWN_BYTES, r->text, shown, start);
    if (*bracket != '[' && found.count > 0)
        return smp_fail_at(place(r, start),
                           "expression '%.*s': '%.*s' is a list, expected an item of it, '%.*s[0]'",
                           (int)SHOWN_BYTES, r->text, shown, start, shown, start);
    if (found.count > 0) {
        SMP_TRY(nested(r, &index));
        if (index < 0 || index >= found.count)
            return smp_fail_at(place(r, bracket + 1),
                               "expression '%.*s': got index %lld of '%.*s', expected 0 to %lld",
                               (int)SHOWN_BYTES, r->text, (long long)index, shown, start,
                               (long long)found.count - 1);
    }
    *out = found.item[index];
    return SMP_OK;
}

static smp_status factor(reader *r, int64_t *out)
{
    skip_blanks(r);
    if (is_digit(*r->at))
        return number(r, out);
    if (is_name(*r->at))
        return name(r, out);
    if (*r->at != '-' && *r->at != '(')
        return fail_syntax(r, "a number, a name or '('");
    const char *sign = r->at;
    SMP_TRY(nested(r, out));
    if (*sign == '-' && __builtin_sub_overflow((int64_t)0, *out, out))
        return fail_overflow(r, sign);
    return SMP_OK;
}

static smp_status divide(const reader *r, const char *at, int64_t left, int64_t right, int64_t *out)
{
    if (right == 0)
        return smp_fail_at(place(r, at), "expression '%.*s': division by zero", (int)SHOWN_BYTES,
                           r->text);
    if (left == INT64_MIN && right == -1)
        return fail_overflow(r, at);
    *out = left / right;
    return SMP_OK;
}

static smp_status product(reader *r, int64_t *out)
{
    SMP_TRY(factor(r, out));
    for (;;) {
        skip_blanks(r);
        const char *sign = r->at;
        if (*sign != '*' && *sign != '/')
            return SMP_OK;
        r->at++;
        int64_t right;
        SMP_TRY(factor(r, &right));
        if (*sign == '/')
            SMP_TRY(divide(r, sign, *out, right, out));
        else if (__builtin_mul_overflow(*out, right, out))
            return fail_overflow(r, sign);
    }
}

static smp_status sum(reader *r, int64_t *out)
{
    SMP_TRY(product(r, out));
    for (;;) {
        skip_blanks(r);
        const char *at = r->at;
        if (*at != '+' && *at != '-')
            return SMP_OK;
        r->at++;
        int64_t right;
        SMP_TRY(product(r, &right));
        if (*at == '+' ? __builtin_add_overflow(*out, right, out)
                       : __builtin_sub_overflow(*out, right, out))
            return fail_overflow(r, at);
    }
}

static smp_status whole(reader *r, int64_t *out)
{
    SMP_TRY(sum(r, out));
    const char *at = r->at;
    bool equal = at[0] != '\0' && at[1] == '=';
    if (*at != '<' && *at != '>' && !((*at == '=' || *at == '!') && equal))
        return SMP_OK;
    r->at += 1 + equal;
    int64_t left = *out;
    int64_t right;
    SMP_TRY(sum(r, &right));
    if (left == right)
        *out = *at != '!' && equal;
    else
        *out = *at == '!' || (*at == '<' && left < right) || (*at == '>' && left > right);
    return SMP_OK;
}

smp_status smp_expr_eval(const char *text, smp_where where, smp_expr_lookup lookup, void *context,
                         int64_t *out)
{
    reader r = {text, text, where, lookup, context, 0};
    int64_t value;
    SMP_TRY(whole(&r, &value));
    if (*r.at != '\0')
        return fail_syntax(&r, "an operator or the end");
    *out = value;
    return SMP_OK;
}
