/* The place of a rank; see the header. */
#include "exec/record/rank_place.h"

#include <stdlib.h>

struct smp__place {
    smp_action action;
    const char *doing; /* NULL: in a step */
};

const char smp__between_steps[] = "between steps";

smp_status smp__place_open(smp__place **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? SMP_OK : smp_fail_memory(sizeof **out);
}

void smp__place_close(smp__place *place)
{
    free(place);
}

void smp__place_begin(smp__place *place)
{
    place->action = (smp_action){.kind = SMP_ACTION_F, .microbatch = -1, .chunk = -1};
    place->doing = NULL;
}

void smp__place_action(smp__place *place, const smp_action *action)
{
    place->action = *action;
}

void smp__place_doing(smp__place *place, const char *doing)
{
    place->doing = doing;
}

const char *smp__place_words(const smp__place *place)
{
    return place->doing;
}

smp_action smp__place_at(const smp__place *place)
{
    return place->action;
}

bool smp__place_is_forward(const smp__place *place)
{
    return place->action.kind == SMP_ACTION_F;
}
