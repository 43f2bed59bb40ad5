/* Numbers in files are written with a point whatever locale the embedding program has set. */
#ifndef SMP_GRAPH_BASE_C_LOCALE_H
#define SMP_GRAPH_BASE_C_LOCALE_H

#include <locale.h>

typedef struct smp__c_locale {
    locale_t mine, old;
} smp__c_locale;

/* Switches the calling thread to the C locale; glibc hands out a static object, no allocation. */
static inline smp__c_locale smp__c_locale_enter(void)
{
    smp__c_locale scope = {newlocale(LC_ALL_MASK, "C", (locale_t)0), (locale_t)0};
    if (scope.mine)
        scope.old = uselocale(scope.mine);
    return scope;
}

static inline void smp__c_locale_leave(smp__c_locale scope)
{
    if (!scope.mine)
        return;
    uselocale(scope.old);
    freelocale(scope.mine);
}

#endif
