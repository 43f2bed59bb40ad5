/* A choice as text and back. */
#include "graph/split/split_text.h"

#include <stdlib.h>
#include <string.h>

#include "graph/model/op.h"

static const char *const WHOLE = "whole";

void smp_split_format(const smp_graph *graph, int32_t o, smp_split_choice choice, smp_text *out)
{
    if (choice.rule < 0) {
        smp_text_append(out, "%s", WHOLE);
        return;
    }
    const smp_split_rule *rule = &graph->op[o].kind->split[choice.rule];
    smp_text_append(out, "%s", rule->name);
    if (rule->in[0] == SMP_CELL_ANY)
        smp_text_append(out, "@%d", choice.dim);
    if (choice.blocks > 1)
        smp_text_append(out, "/%d", choice.blocks);
}

static smp_status fail_rule(const smp_op *op, const char *text)
{
    smp_text known = {0};
    smp_text_append(&known, "%s", WHOLE);
    for (const smp_split_rule *r = op->kind->split; r && r->name; r++)
        smp_text_append(&known, ", %s%s", r->name, r->in[0] == SMP_CELL_ANY ? "@DIMENSION" : "");
    smp_status status = known.failed
                            ? smp_fail_memory(known.length)
                            : smp_fail(SMP_ERR_INPUT, "op '%s' (%s): split '%.60s', expected %s",
                                       op->name, op->kind->name, text, known.data);
    smp_text_free(&known);
    return status;
}

/* A digit after `sign`, which `*at` may stand before; else `missing`. */
static int8_t read_digit(const char **at, char sign, int8_t missing)
{
    if (**at != sign || (*at)[1] < '0' || (*at)[1] > '9')
        return missing;
    int8_t digit = (int8_t)((*at)[1] - '0');
    *at += 2;
    return digit;
}

/* The choice that a text names, if the kind has its rule. */
static bool read_choice(const smp_op *op, const char *text, smp_split_choice *out)
{
    const size_t length = strcspn(text, "@/");
    const char *rest = text + length;
    const int8_t dim = read_digit(&rest, '@', -1), blocks = read_digit(&rest, '/', 1);
    if (strcmp(text, WHOLE) == 0) {
        *out = (smp_split_choice){-1, 0, 1};
        return true;
    }
    for (int8_t r = 0; op->kind->split && op->kind->split[r].name; r++) {
        const smp_split_rule *rule = &op->kind->split[r];
        const bool any = rule->in[0] == SMP_CELL_ANY;
        if (strlen(rule->name) != length || memcmp(rule->name, text, length) != 0)
            continue;
        *out = (smp_split_choice){r, any ? dim : 0, blocks};
        return !*rest && any == (dim >= 0);
    }
    return false;
}

bool smp_split_has_rule(const smp_graph *graph, int32_t o, const char *text)
{
    smp_split_choice choice;
    return read_choice(&graph->op[o], text, &choice);
}

smp_status smp_split_parse(const smp_graph *graph, int32_t o, int devices, const char *text,
                           smp_split_choice *out)
{
    const smp_op *op = &graph->op[o];
    smp_split_choice wanted, allowed[SMP_SPLIT_CHOICES];
    *out = (smp_split_choice){-1, 0, 1};
    if (!read_choice(op, text, &wanted))
        return fail_rule(op, text);
    if (wanted.rule < 0)
        return SMP_OK;
    const int n = smp_split_choices(graph, o, devices, allowed);
    for (int i = 0; i < n; i++)
        if (memcmp(&allowed[i], &wanted, sizeof wanted) == 0) {
            *out = wanted;
            return SMP_OK;
        }
    return smp_fail(
        SMP_ERR_INPUT,
        "op '%s' (%s): split '%.60s': its sizes, or what is frozen, do not allow that on %d "
        "devices",
        op->name, op->kind->name, text, devices);
}
