/* smp_op_register: an operator of a user's own (smp.h) is checked and becomes a kind like those of
 * this room; custom_node.c has what it does. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "graph/ops/custom_op.h"

/* The size of the first version: what a plugin has at least. */
enum { LEAST_SIZE = offsetof(smp_custom_op, backward_weight) + sizeof(void (*)(void)) };
#define MAX_INT 0x1p53 /* whole numbers up to here are exact */

bool smp__custom_name(const char *name)
{
    const size_t length = name ? strlen(name) : 0;
    return length > 0 && length <= SMP__CUSTOM_NAME && name[0] >= 'a' && name[0] <= 'z' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

/* The struct of a plugin that may be older, and so shorter, or newer: then what it has more must
 * not be used. */
static smp_status read_struct(const smp_custom_op *given, smp_custom_op *op)
{
    if (!given)
        return smp_fail(SMP_ERR_INPUT, "smp_op_register: a NULL argument");
    if (given->abi != SMP_CUSTOM_ABI)
        return smp_fail(SMP_ERR_INPUT,
                        "an operator was compiled for version %u of smp_custom_op, expected %d: "
                        "compile it with the smp.h of smp %s",
                        (unsigned)given->abi, SMP_CUSTOM_ABI, SMP_VERSION_STRING);
    if (given->size < LEAST_SIZE)
        return smp_fail(SMP_ERR_INPUT, "an operator has size %u, expected sizeof(smp_custom_op)",
                        (unsigned)given->size);
    *op = (smp_custom_op){0};
    memcpy(op, given, given->size < sizeof *op ? given->size : sizeof *op);
    for (size_t i = sizeof *op; i < given->size; i++)
        if (((const unsigned char *)given)[i])
            return smp_fail(SMP_ERR_INPUT,
                            "op '%.60s': it uses more of smp_custom_op than smp %s knows",
                            op->name ? op->name : "", SMP_VERSION_STRING);
    return SMP_OK;
}

static smp_status check_op(const smp_custom_op *op)
{
    if (!smp__custom_name(op->name))
        return smp_fail(SMP_ERR_INPUT,
                        "an operator is named '%.60s', expected small letters, digits and _, at "
                        "most %d, the first a letter",
                        op->name ? op->name : "", SMP__CUSTOM_NAME);
    if (smp_op_kind_find(op->name))
        return smp_fail(SMP_ERR_INPUT, "op '%s': the name is already that of %s operator", op->name,
                        smp_op_kind_find(op->name)->registered ? "a registered" : "a built-in");
    if (!op->summary || !op->forward)
        return smp_fail(SMP_ERR_INPUT, "op '%s': expected a summary and forward", op->name);
    if (op->min_inputs < 0 || op->min_inputs > op->max_inputs ||
        op->max_inputs > SMP_CUSTOM_MAX_INPUTS)
        return smp_fail(SMP_ERR_INPUT, "op '%s': %d to %d inputs, expected from 0 to %d", op->name,
                        op->min_inputs, op->max_inputs, SMP_CUSTOM_MAX_INPUTS);
    if (op->outputs < 0 || op->outputs > (op->loss ? 1 : SMP_CUSTOM_MAX_OUTPUTS))
        return smp_fail(SMP_ERR_INPUT, "op '%s': %d outputs, expected at most %d", op->name,
                        op->outputs, op->loss ? 1 : SMP_CUSTOM_MAX_OUTPUTS);
    return SMP_OK;
}

static bool is_default(const smp_custom_attr *a)
{
    const double value = a->default_value;
    if (a->type == SMP_CUSTOM_BOOL)
        return value == 0 || value == 1;
    if (a->type == SMP_CUSTOM_INT && !(fabs(value) <= MAX_INT && value == floor(value)))
        return false;
    return value >= a->min && value <= a->max;
}

static smp_status check_attr(const smp_custom_op *op, int index)
{
    const smp_custom_attr *a = &op->attrs[index];
    bool free_name = smp__custom_name(a->name) && !smp_op_key_is_common(a->name);
    for (int i = 0; i < index; i++)
        free_name &= strcmp(op->attrs[i].name, a->name) != 0;
    if (!free_name)
        return smp_fail(SMP_ERR_INPUT,
                        "op '%s': an attribute is named '%.60s', expected small letters, digits "
                        "and _, a name of its own that is no key of every op",
                        op->name, a->name);
    if ((unsigned)a->type > SMP_CUSTOM_BOOL)
        return smp_fail(SMP_ERR_INPUT,
                        "op '%s': attribute '%s': type %d, expected one of "
                        "smp_custom_type",
                        op->name, a->name, (int)a->type);
    if ((a->type != SMP_CUSTOM_BOOL && !(a->min <= a->max)) || (!a->required && !is_default(a)))
        return smp_fail(SMP_ERR_INPUT,
                        "op '%s': attribute '%s': default %g in %g to %g, expected a value in a "
                        "range",
                        op->name, a->name, a->default_value, a->min, a->max);
    return SMP_OK;
}

static smp_status set_attrs(smp__custom_op *custom)
{
    static const smp_attr_type types[] = {[SMP_CUSTOM_INT] = SMP_ATTR_INT,
                                          [SMP_CUSTOM_FLOAT] = SMP_ATTR_FLOAT,
                                          [SMP_CUSTOM_BOOL] = SMP_ATTR_BOOL};
    const smp_custom_op *op = &custom->op;
    for (int i = 0; op->attrs && op->attrs[i].name; i++) {
        const smp_custom_attr *a = &op->attrs[i];
        if (i == SMP_CUSTOM_MAX_ATTRS)
            return smp_fail(SMP_ERR_INPUT, "op '%s': more than %d attributes", op->name,
                            SMP_CUSTOM_MAX_ATTRS);
        SMP_TRY(check_attr(op, i));
        custom->attrs[i] = (smp_attr_desc){.name = a->name,
                                           .type = types[a->type],
                                           .required = a->required,
                                           .default_value = a->default_value,
                                           .min = a->min,
                                           .max = a->max};
    }
    return SMP_OK;
}

static smp_status add(smp__custom_op *custom)
{
    const smp_custom_op *op = &custom->op;
    SMP_TRY(set_attrs(custom));
    custom->kind = smp__custom_kind;
    custom->kind.name = op->name;
    custom->kind.summary = op->summary;
    custom->kind.min_in = op->min_inputs;
    custom->kind.max_in = op->max_inputs;
    custom->kind.max_out = op->outputs;
    custom->kind.attrs = custom->attrs;
    if (!op->backward_input)
        custom->kind.cpu.backward_input = NULL;
    if (!op->backward_weight)
        custom->kind.cpu.backward_weight = NULL;
    if (smp__custom_ops_push(&custom->kind))
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT, "op '%s': %d operators are registered already, expected no more",
                    op->name, SMP_CUSTOM_MAX_OPS);
}

smp_status smp_op_register(const smp_custom_op *op)
{
    smp_custom_op known;
    SMP_TRY(read_struct(op, &known));
    SMP_TRY(check_op(&known));
    smp__custom_op *custom = calloc(1, sizeof *custom);
    if (!custom)
        return smp_fail_memory(sizeof *custom);
    custom->op = known;
    smp_status status = add(custom);
    if (status != SMP_OK)
        free(custom);
    return status;
}

void smp__custom_ops_keep(int n)
{
    while (smp__custom_ops() > n)
        free((void *)smp__custom_ops_pop()); /* from smp_op_register */
}
