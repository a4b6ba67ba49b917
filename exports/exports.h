// exports.h - the interception layer: what shim/ does with it.
#ifndef GPREEMPT_EXPORTS_H
#define GPREEMPT_EXPORTS_H

#include "hints/sockets.h"
#include "preempt/driver/hooks.h"

// Nonzero while interceptors of submissions and waits must call the hooks; set by the core. An
// intercepted launch costs a load of this word and a branch while it is zero. Life-cycle hooks and
// rm_ioctl are called whenever hooks are installed.
extern _Atomic uint32_t gp_armed;

void gp_install_hooks(const struct gp_hooks *);
// The driver's own function, never ours; NULL where the driver lacks it. Usable after cuInit began.
void *gp_driver_symbol(const char *name);
// start is called once, on the thread that calls cuInit first, before the driver's cuInit runs
// (also before a first context call), with all signals blocked. Set by shim/ as the library's Go code comes up.
void gp_set_start(void (*start)(void));
// True in a child forked after CUDA was first initialised: Go code must not be entered there.
bool gp_forked(void);
// While there are no hooks, and in a forked child, an intercepted call of libc's costs a load and a branch.
void gp_install_socket_hooks(const struct gp_socket_hooks *);

#endif
