/* The command that starts an agent, here or through a shell on another host. */
#ifndef SMP_TOOLS_ELASTIC_HOSTS_AGENT_COMMAND_H
#define SMP_TOOLS_ELASTIC_HOSTS_AGENT_COMMAND_H

#include "tools/elastic/hosts/hosts.h"

/* `asked`, or what is usual here where it is NULL: words with blanks between, {host} among them,
 * and one more, a line for a shell, follows. SMP_ERR_INPUT: it has no {host}, or is too long. */
smp_status smp__agent_template(const char *asked, char *out, size_t size);
smp_status smp__agent_start(const smp__hosts_options *options, const char *agent, const char *host,
                            bool local, smp__agent_link *out);
/* A script for sh that does the same for mpirun: HOST WORD... */
smp_status smp__agent_script(const char *agent, const char *path);

#endif
