// exports.h - what shim/ calls of the interception layer.
#ifndef GPREEMPT_EXPORTS_H
#define GPREEMPT_EXPORTS_H

#include "hints/socket_hooks.h"
#include "preempt/driver/hooks.h"

// Set by the core: nonzero while the interceptors of work and waits must call the hooks. While it is zero, an intercepted
// launch costs a load of this word and a branch. The other hooks are called whenever hooks are installed.
extern _Atomic uint32_t gp_armed;

void gp_install_hooks(const struct gp_hooks *);
// The driver's own function, never ours; NULL: the driver lacks it. To be called after cuInit began.
void *gp_driver_symbol(const char *name);
// From now on the intercepted function of that name calls this one, of the same type, instead of the driver's; until the
// process forks, in the child. It has no effect where the driver lacks the function, or table.h does. To be called after cuInit began.
void gp_substitute(const char *name, void *function);
// start is called once, on the thread that calls cuInit (or makes a context) first, before the driver's function runs. It gets the
// environment that the library was loaded with, and returns why there is no preemption, or NULL.
typedef const char *gp_start_fn(char **environment);
void gp_set_start(gp_start_fn *);
// Writes to standard error without waiting. Returns how many bytes need no second try, or a reason for one. The caller blocks SIGPIPE and
// SIGXFSZ.
enum {
	GP_NO_ROOM = -1,  // later
	GP_MAY_WAIT = -2, // only a write that may wait for ever
};
long gp_say(const char *text, size_t bytes);
// Without hooks, and in a forked child, an intercepted call of libc costs a load and a branch.
void gp_install_socket_hooks(const struct gp_socket_hooks *);

#endif
