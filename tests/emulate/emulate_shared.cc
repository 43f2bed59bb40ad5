/* Finds the static shared memory of the kernels. `__shared__` makes a thread_local static inside
 * of a function, and nothing else in these programs is one: the symbol table of the program lists
 * them as _ZZ... of the type TLS, with offsets; a variable of known address tells where offsets
 * begin. A stripped program has no such table: then static shared memory starts as zeroes. */
#include <elf.h>
#include <link.h>

#include <cstdio>
#include <cstring>

#include "emulate_state.h"

extern "C" {
extern thread_local unsigned char emulate_shared_anchor;
thread_local unsigned char emulate_shared_anchor = 1;
}

namespace
{

std::vector<char> read_program()
{
    std::vector<char> bytes;
    FILE *file = fopen("/proc/self/exe", "rb");
    if (!file)
        return bytes;
    char buffer[1 << 16];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, file)) > 0;)
        bytes.insert(bytes.end(), buffer, buffer + n);
    fclose(file);
    return bytes;
}

std::vector<emulate_range> find()
{
    std::vector<emulate_range> found;
    const std::vector<char> program = read_program();
    const char *base = program.data();
    if (program.size() < sizeof(ElfW(Ehdr)) || memcmp(base, ELFMAG, SELFMAG) != 0)
        return found;
    const ElfW(Ehdr) *header = reinterpret_cast<const ElfW(Ehdr) *>(base);
    const ElfW(Shdr) *section = reinterpret_cast<const ElfW(Shdr) *>(base + header->e_shoff);
    for (int s = 0; s < header->e_shnum; s++) {
        if (section[s].sh_type != SHT_SYMTAB)
            continue;
        const ElfW(Sym) *symbol = reinterpret_cast<const ElfW(Sym) *>(base + section[s].sh_offset);
        const char *names = base + section[section[s].sh_link].sh_offset;
        const size_t n = section[s].sh_size / sizeof(ElfW(Sym));
        unsigned char *start = nullptr;
        for (size_t i = 0; i < n; i++)
            if (strcmp(names + symbol[i].st_name, "emulate_shared_anchor") == 0)
                start = &emulate_shared_anchor - symbol[i].st_value;
        for (size_t i = 0; start && i < n; i++)
            if ((symbol[i].st_info & 15) == STT_TLS &&
                strncmp(names + symbol[i].st_name, "_ZZ", 3) == 0)
                found.push_back({start + symbol[i].st_value, symbol[i].st_size});
    }
    return found;
}

} // namespace

const std::vector<emulate_range> &emulate_static_shared()
{
    static const std::vector<emulate_range> ranges = find();
    return ranges;
}
