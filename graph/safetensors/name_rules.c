/* Reading rules of names; see the header. What patterns are is in name_patterns.c. */
#include "graph/safetensors/name_rules.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/text.h"

enum { MOST_BYTES = 16 << 20 };

/* A line, word by word. */
typedef struct line {
    const char *file;
    int number;
    const char *begin, *at, *end;
    smp_arena *arena;
} line;

static smp_status fail_here(const line *l, const char *at, const char *reason)
{
    return smp_fail_at((smp_where){l->file, l->number, (int)(at - l->begin) + 1}, "%s", reason);
}

static void skip_spaces(line *l)
{
    while (l->at < l->end && (*l->at == ' ' || *l->at == '\t' || *l->at == '\r'))
        l->at++;
}

static smp_status take_quoted(line *l, const char **word)
{
    const char *begin = l->at++;
    char *copy = smp_arena_alloc(l->arena, (size_t)(l->end - begin) + 1, 1);
    size_t n = 0;
    if (!copy)
        return SMP_ERR_NO_MEMORY;
    while (l->at < l->end && *l->at != '"') {
        l->at += *l->at == '\\' && l->at + 1 < l->end;
        copy[n++] = *l->at++;
    }
    if (l->at == l->end)
        return fail_here(l, begin, "a name in quotes that does not end");
    l->at++;
    *word = copy;
    return SMP_OK;
}

/* The next word, or NULL at the end. */
static smp_status take_word(line *l, const char **word)
{
    skip_spaces(l);
    const char *begin = l->at;
    *word = NULL;
    if (begin == l->end)
        return SMP_OK;
    if (*begin == '"')
        return take_quoted(l, word);
    while (l->at < l->end && !strchr(" \t\r", *l->at))
        l->at++;
    *word = smp_arena_printf(l->arena, "%.*s", (int)(l->at - begin), begin);
    return *word ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static bool next_is(line *l, const char *word)
{
    const size_t n = strlen(word);
    skip_spaces(l);
    if ((size_t)(l->end - l->at) < n || memcmp(l->at, word, n) != 0 ||
        (l->at + n < l->end && !strchr(" \t\r", l->at[n])))
        return false;
    l->at += n;
    return true;
}

static smp_status take_part(line *l, smp_rule_tensor *tensor)
{
    const char *word = NULL, *at = (skip_spaces(l), l->at);
    int end = 0;
    SMP_TRY(take_word(l, &word));
    if (!word || strlen(word) > 9 ||
        sscanf(word, "%d/%d%n", &tensor->part, &tensor->parts, &end) != 2 || word[end] != '\0' ||
        tensor->parts < 2 || tensor->parts > SMP_RULE_PARTS || tensor->part < 0 ||
        tensor->part >= tensor->parts)
        return fail_here(l, at, "part: expected K/N, N from 2 to 1024, K from 0 to N - 1");
    return SMP_OK;
}

/* Every dimension a number, d0 .. d5 or `?`. */
static bool is_shape(const char *text)
{
    for (int n = 1;; n++, text++) {
        if (*text == '?')
            text++;
        else if (*text == 'd' && text[1] >= '0' && text[1] <= '5')
            text += 2;
        else if (isdigit((unsigned char)*text))
            text += strspn(text, "0123456789");
        else
            return false;
        if (*text == '\0')
            return n <= 8;
        if (*text != 'x')
            return false;
    }
}

static smp_status take_shape(line *l, smp_rule_tensor *tensor)
{
    const char *at = (skip_spaces(l), l->at);
    SMP_TRY(take_word(l, &tensor->shaped));
    if (!tensor->shaped || strlen(tensor->shaped) > 100 || !is_shape(tensor->shaped))
        return fail_here(l, at, "shaped: expected dimensions such as d0x3x?x?");
    return SMP_OK;
}

static smp_status take_rows(line *l, smp_rule_tensor *tensor)
{
    const char *at = (skip_spaces(l), l->at);
    SMP_TRY(take_word(l, &tensor->rows));
    const char *text = tensor->rows ? tensor->rows : "";
    const size_t digits = strspn(text, "0123456789");
    const bool is_dim = text[0] == 'd' && text[1] >= '1' && text[1] <= '5' && text[2] == '\0';
    if (!is_dim && (digits == 0 || digits > 9 || text[digits] != '\0'))
        return fail_here(l, at, "rows: expected a number or d1 to d5");
    return SMP_OK;
}

static smp_status take_tensor(line *l, smp_rule_tensor *tensor)
{
    const char *at = (skip_spaces(l), l->at);
    *tensor = (smp_rule_tensor){.parts = 1};
    SMP_TRY(take_word(l, &tensor->name));
    if (!tensor->name || strcmp(tensor->name, "+") == 0)
        return fail_here(l, at, "expected the name of a tensor");
    for (;;) {
        if (next_is(l, "transposed"))
            tensor->transposed = true;
        else if (next_is(l, "part"))
            SMP_TRY(take_part(l, tensor));
        else if (next_is(l, "shaped"))
            SMP_TRY(take_shape(l, tensor));
        else if (next_is(l, "rows"))
            SMP_TRY(take_rows(l, tensor));
        else
            return SMP_OK;
    }
}

static smp_status check_together(line *l, const smp_name_rule *rule)
{
    for (int i = 0; i < rule->n_tensor; i++) {
        const smp_rule_tensor *t = &rule->tensor[i];
        if (t->shaped && (t->transposed || t->parts > 1 || rule->n_tensor > 1))
            return fail_here(l, l->begin, "`shaped` goes with nothing else");
        if (t->parts > 1 && rule->n_tensor > 1)
            return fail_here(l, l->begin, "`part` and `+` do not go together");
        if (t->rows && rule->n_tensor == 1)
            return fail_here(l, l->begin, "`rows` goes with tensors that are stacked by `+`");
    }
    return SMP_OK;
}

/* What stands after a place's name: "}", "+12}" or "-1}". */
static bool is_offset(const char *c)
{
    const size_t digits = *c == '}' ? 0 : strspn(c + 1, "0123456789");
    return *c == '}' ||
           (digits > 0 && digits < 10 && (digits == 1 || c[1] != '0') && c[1 + digits] == '}');
}

/* What a name of the right side has in braces, the left side has, too; but for the number of an
 * item. */
static smp_status check_places(line *l, smp_name_rule *rule)
{
    for (int i = 0; i < rule->n_tensor; i++) {
        const bool each = strstr(rule->tensor[i].name, "{#}");
        if (i > 0 && each != rule->each)
            return fail_here(l, l->begin, "`{#}` stands in all tensors of a rule, or in none");
        rule->each = each;
    }
    for (int i = 0; i < rule->n_tensor; i++) {
        int texts = 0, known = 0;
        for (const char *c = rule->weight; *c; c++)
            known += *c == '*';
        for (const char *c = rule->tensor[i].name; *c; c++) {
            char place[20];
            size_t n = *c == '{' ? strcspn(c + 1, "}+-") : 0;
            texts += *c == '*';
            if (*c != '{')
                continue;
            if (strncmp(c, "{#}", 3) == 0)
                continue;
            if (n == 0 || n > 15 || !strchr(c, '}'))
                return fail_here(l, l->begin, "a '{' without a name and '}' after it");
            if (!is_offset(c + 1 + n))
                return fail_here(l, l->begin, "expected {NAME}, {NAME+N} or {NAME-N}");
            snprintf(place, sizeof place, "{%.*s}", (int)n, c + 1);
            if (!strstr(rule->weight, place))
                return smp_fail_at((smp_where){l->file, l->number, 1},
                                   "'%s': the weight's pattern has no %s", rule->tensor[i].name,
                                   place);
        }
        if (texts > known)
            return fail_here(l, l->begin, "more `*` in a tensor's name than in the weight's");
    }
    return SMP_OK;
}

static smp_status check_weight(line *l, const char *weight)
{
    int texts = 0, numbers = 0;
    for (const char *c = weight; *c; c++) {
        const size_t n = *c == '{' ? strcspn(c + 1, "}") : 0;
        texts += *c == '*';
        numbers += *c == '{';
        if (*c == '{' && (n == 0 || n > 15 || c[n + 1] != '}' || strcspn(c + 1, "{+-*#") < n))
            return fail_here(l, l->begin, "a '{' without a name and '}' after it");
    }
    if (texts > SMP_RULE_TEXTS || numbers > SMP_RULE_NUMBERS)
        return fail_here(l, l->begin, "a pattern has at most two `*` and four {}");
    return SMP_OK;
}

static smp_status take_rule(line *l, smp_name_rule *rule)
{
    SMP_TRY(take_word(l, &rule->weight));
    if (!next_is(l, "="))
        return fail_here(l, l->at, "expected '=': WEIGHT = TENSOR");
    SMP_TRY(check_weight(l, rule->weight));
    do {
        if (rule->n_tensor == SMP_RULE_TENSORS)
            return fail_here(l, l->at, "more than 8 tensors");
        SMP_TRY(take_tensor(l, &rule->tensor[rule->n_tensor++]));
    } while (next_is(l, "+"));
    if (skip_spaces(l), l->at < l->end)
        return fail_here(l, l->at, "expected transposed, part, shaped, '+' or the line's end");
    SMP_TRY(check_together(l, rule));
    return check_places(l, rule);
}

smp_status smp_name_rules_add(smp_name_rules *rules, const char *file, const char *text)
{
    line l = {.file = file};
    if (!rules->arena && !(rules->arena = smp_arena_create()))
        return smp_fail_memory(1);
    l.arena = rules->arena;
    while (*text) {
        smp_name_rule rule = {0};
        l.begin = l.at = text;
        l.end = text + strcspn(text, "\n");
        l.number++;
        text = l.end + (*l.end == '\n');
        skip_spaces(&l);
        if (l.at == l.end || *l.at == '#')
            continue;
        SMP_TRY(take_rule(&l, &rule));
        SMP_TRY(
            smp_array_reserve(&rules->rule, &rules->capacity, sizeof rule, (size_t)rules->n + 1));
        rules->rule[rules->n++] = rule;
    }
    return SMP_OK;
}

smp_status smp_name_rules_read(smp_name_rules *rules, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    SMP_TRY(smp_file_read(path, MOST_BYTES, &text, &bytes));
    smp_status status =
        strlen(text) == bytes
            ? smp_name_rules_add(rules, path, text)
            : smp_fail(SMP_ERR_INPUT, "%s: byte %zu: a zero, expected text", path, strlen(text));
    free(text);
    return status;
}

void smp_name_rules_free(smp_name_rules *rules)
{
    free(rules->rule);
    smp_arena_destroy(rules->arena);
}
