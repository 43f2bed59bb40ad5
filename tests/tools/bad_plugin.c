/* Plugins that are refused, one for each word that the build defines; see test_plugin.c. */
#include "smp.h"

extern int smp_nobody_defines_this;

static smp_status forward(const smp_custom_call *call)
{
    for (int64_t i = 0; i < call->batch * call->node->in[0].elements; i++)
        call->out[0][i] = ((const float *)call->in[0])[i];
    return SMP_OK;
}

static smp_status backward_input(const smp_custom_call *call)
{
    for (int64_t i = 0; i < call->batch * call->node->in[0].elements; i++)
        call->in_grad[0][i] = call->out_grad[0][i];
    return SMP_OK;
}

static smp_custom_op copy = {.abi = SMP_CUSTOM_ABI,
                             .size = sizeof copy,
                             .name = "copy",
                             .summary = "its input",
                             .min_inputs = 1,
                             .max_inputs = 1,
                             .forward = forward,
                             .backward_input = backward_input};

#ifdef no_entry
SMP_API smp_custom_op *smp_plugin_unregistered(void);

SMP_API smp_custom_op *smp_plugin_unregistered(void)
{
    return &copy;
}
#else
smp_status smp_plugin_register(void)
{
#ifdef other_abi
    copy.abi = SMP_CUSTOM_ABI + 1;
#endif
#ifdef taken_name
    copy.name = "linear";
#endif
#ifdef nothing
    if (copy.size)
        return SMP_OK;
#endif
#ifdef undefined
    copy.max_inputs = smp_nobody_defines_this;
#endif
    smp_status status = smp_op_register(&copy);
#ifdef second_fails
    if (status == SMP_OK)
        status = smp_op_register(&copy);
#endif
    return status;
}
#endif
