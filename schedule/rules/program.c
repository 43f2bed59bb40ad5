/* Programs and their text: one token per action, separated by blanks. Linear in the text. */
#include "schedule/rules/program.h"

#include <stdlib.h>
#include <string.h>

#include "graph/base/arena.h"

#define SMP_ACTION_TEXT(id, text, word) text,
static const char *const kind_text[] = {SMP_ACTION_LIST(SMP_ACTION_TEXT)};
#undef SMP_ACTION_TEXT

#define SMP_ACTION_WORD(id, text, word) word,
static const char *const kind_word[] = {SMP_ACTION_LIST(SMP_ACTION_WORD)};
#undef SMP_ACTION_WORD

enum { N_KIND = sizeof kind_text / sizeof kind_text[0] };

smp_status smp_program_push(smp_program *program, smp_action_kind kind, int microbatch, int chunk)
{
    SMP_TRY(smp_array_reserve(&program->action, &program->capacity, sizeof *program->action,
                              (size_t)program->n + 1));
    program->action[program->n++] =
        (smp_action){.kind = kind, .microbatch = microbatch, .chunk = chunk};
    return SMP_OK;
}

void smp_program_free(smp_program *program)
{
    free(program->action);
    *program = (smp_program){0};
}

const char *smp_action_letters(smp_action_kind kind)
{
    return (unsigned)kind < N_KIND ? kind_text[kind] : "?";
}

const char *smp_action_word(smp_action_kind kind)
{
    return (unsigned)kind < N_KIND ? kind_word[kind] : "other";
}

void smp_action_format(const smp_action *action, smp_text *text)
{
    const char *kind = smp_action_letters(action->kind);
    if (action->kind == SMP_ACTION_OPTIMIZE)
        smp_text_append(text, "%s", kind);
    else if (!smp_action_has_microbatch(action->kind))
        smp_text_append(text, "%s.%d", kind, (int)action->chunk);
    else
        smp_text_append(text, "%s%d.%d", kind, (int)action->microbatch, (int)action->chunk);
}

void smp_program_format(const smp_program *program, smp_text *text)
{
    for (int64_t i = 0; i < program->n; i++) {
        if (i > 0)
            smp_text_append_bytes(text, " ", 1);
        smp_action_format(&program->action[i], text);
    }
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* A decimal number of at most INT32_MAX without leading zeros; advances *at. */
static bool read_number(const char **at, const char *end, int32_t *value)
{
    const char *c = *at;
    int64_t sum = 0;
    while (c < end && *c >= '0' && *c <= '9' && sum <= INT32_MAX)
        sum = 10 * sum + (*c++ - '0');
    if (c == *at || sum > INT32_MAX || (**at == '0' && c > *at + 1))
        return false;
    *value = (int32_t)sum;
    *at = c;
    return true;
}

/* The kind whose text begins the token; two-letter kinds begin with an arrow: at most one fits. */
static bool read_kind(const char **at, const char *end, smp_action_kind *kind)
{
    for (int k = 0; k < N_KIND; k++) {
        size_t length = strlen(kind_text[k]);
        if ((size_t)(end - *at) >= length && memcmp(*at, kind_text[k], length) == 0) {
            *kind = (smp_action_kind)k;
            *at += length;
            return true;
        }
    }
    return false;
}

static bool read_action(const char *at, const char *end, smp_action *action)
{
    *action = (smp_action){.microbatch = -1, .chunk = -1};
    if (!read_kind(&at, end, &action->kind))
        return false;
    if (action->kind == SMP_ACTION_OPTIMIZE)
        return at == end;
    if (smp_action_has_microbatch(action->kind) && !read_number(&at, end, &action->microbatch))
        return false;
    if (at == end || *at != '.')
        return false;
    at++;
    return read_number(&at, end, &action->chunk) && at == end;
}

smp_status smp_program_parse(const char *text, int rank, smp_where where, smp_program *out)
{
    smp_program program = {0};
    smp_status status = SMP_OK;
    const char *at = text;
    for (;;) {
        while (is_blank(*at))
            at++;
        if (!*at)
            break;
        const char *end = at;
        while (*end && !is_blank(*end))
            end++;
        smp_action action;
        if (!read_action(at, end, &action)) {
            int shown = end - at > 40 ? 40 : (int)(end - at);
            status = smp_fail_at(
                where,
                "rank %d, action %lld: got '%.*s', expected one of Fm.c Bm.c Im.c Wm.c "
                ">Fm.c <Fm.c >Bm.c <Bm.c Sm.c Lm.c G.c D.c R.c A.c O (m: micro-batch, c: chunk)",
                rank, (long long)program.n + 1, shown, at);
            goto failed;
        }
        status = smp_program_push(&program, action.kind, action.microbatch, action.chunk);
        if (status != SMP_OK)
            goto failed;
        at = end;
    }
    *out = program;
    return SMP_OK;
failed:
    smp_program_free(&program);
    return status;
}
