/* The emulator's settings, from the environment, its random sequence, and how it gives up. */
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "emulate_state.h"

namespace
{

emulate_settings settings;
bool is_read;
uint64_t state;

/* Steele, Lea and Flood: SplitMix64. */
uint64_t next()
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

long long number(const char *name, long long otherwise)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return otherwise;
    char *end;
    const long long value = strtoll(text, &end, 10);
    if (*end || value < 0)
        emulate_die("%s=%s is no number", name, text);
    return value;
}

void read_order(const char *text)
{
    settings.order = emulate_order::random;
    state = 1;
    if (!text || !*text)
        return;
    char *end;
    if (strcmp(text, "forward") == 0)
        settings.order = emulate_order::forward;
    else if (strcmp(text, "backward") == 0)
        settings.order = emulate_order::backward;
    else if (state = strtoull(text, &end, 10), *end)
        emulate_die("SMP_EMULATE_ORDER=%s: forward, backward or a number", text);
}

/* Of CUDA_VISIBLE_DEVICES, a list of numbers; the first that is none of the machine's ends it.
 * Without SMP_EMULATE_DEVICES the variable means GPUs that the machine really has. */
void read_devices()
{
    const int devices = static_cast<int>(number("SMP_EMULATE_DEVICES", 1));
    const char *list = getenv("SMP_EMULATE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : nullptr;
    settings.visible.clear();
    for (int i = 0; !list && i < devices; i++)
        settings.visible.push_back(i);
    for (char *end; list && *list; list = *end == ',' ? end + 1 : end) {
        const long device = strtol(list, &end, 10);
        if (end == list || device < 0 || device >= devices)
            break;
        settings.visible.push_back(static_cast<int>(device));
    }
    settings.devices = static_cast<int>(settings.visible.size());
}

/* "RANK MICROSECONDS": of this one? */
unsigned slowness(const char *text)
{
    const char *own = getenv("OMPI_COMM_WORLD_RANK");
    int rank;
    unsigned us;
    if (!text || !*text)
        return 0;
    if (sscanf(text, "%d %u", &rank, &us) != 2)
        emulate_die("SMP_EMULATE_SLOW=%s: a rank and microseconds", text);
    return rank == (own ? atoi(own) : 0) ? us : 0;
}

void read_all()
{
    is_read = true;
    read_order(getenv("SMP_EMULATE_ORDER"));
    read_devices();
    settings.memory = static_cast<size_t>(number("SMP_EMULATE_MEMORY", 4LL << 30));
    settings.capability = static_cast<int>(number("SMP_EMULATE_CAPABILITY", 80));
    settings.driver = static_cast<int>(number("SMP_EMULATE_DRIVER", CUDART_VERSION));
    settings.multiprocessors = static_cast<int>(number("SMP_EMULATE_MULTIPROCESSORS", 2));
    settings.libraries = static_cast<size_t>(number("SMP_EMULATE_LIBRARIES", 0));
    settings.fail = static_cast<long>(number("SMP_EMULATE_FAIL", 0));
    settings.graphs = static_cast<long>(number("SMP_EMULATE_GRAPHS", 1LL << 30));
    settings.slow_us = slowness(getenv("SMP_EMULATE_SLOW"));
    settings.lazy = number("SMP_EMULATE_LAZY", 0) != 0;
    settings.mig = number("SMP_EMULATE_MIG", 0) != 0;
    settings.protect = number("SMP_EMULATE_PROTECT", 1) != 0;
}

} // namespace

const emulate_settings &emulate_setting()
{
    if (!is_read)
        read_all();
    return settings;
}

void emulate_reread_settings()
{
    read_all();
}

void emulate_set_order(const char *order)
{
    emulate_setting();
    read_order(order);
}

uint64_t emulate_random()
{
    return emulate_setting().order == emulate_order::random ? next() : 0;
}

size_t emulate_random_below(size_t n)
{
    return static_cast<size_t>(emulate_random() % n);
}

size_t emulate_shared_limit(bool optin)
{
    if (!optin)
        return 48u << 10;
    switch (emulate_setting().capability) {
    case 80:
    case 87:
        return 163u << 10;
    case 86:
    case 89:
    case 120:
    case 121:
        return 99u << 10;
    }
    return 227u << 10;
}

void emulate_die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "CUDA emulator: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    fflush(stderr);
    abort();
}
